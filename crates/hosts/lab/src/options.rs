//! What can be chosen about a lab, whatever its topology.

use serde::{Deserialize, Serialize};

use crate::{Device, Error, Result};

/// What can be chosen about a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The MTU of every wire, 68 to 65535 bytes.
    pub mtu_bytes: u32,
    /// The queues of every device, each way, 1 to 64.
    pub n_queues: u32,
    /// What stands between the hosts; a wire when absent.
    pub device: Option<Device>,
    /// The core that the device is to run on; absent for wherever frames are sent to it.
    pub device_core: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        // What Ethernet has, and what one core can serve.
        Self { mtu_bytes: 1500, n_queues: 1, device: None, device_core: None }
    }
}

impl Options {
    /// Checks the ranges, before anything is touched.
    ///
    /// # Errors
    /// [`Error::BadOption`] for the first that is outside.
    pub fn validate(&self) -> Result<()> {
        if !(68..=65_535).contains(&self.mtu_bytes) {
            return Err(Error::BadOption { option: "MTU", given: self.mtu_bytes, range: "68 to 65535 bytes" });
        }
        if !(1..=64).contains(&self.n_queues) {
            return Err(Error::BadOption { option: "queue count", given: self.n_queues, range: "1 to 64" });
        }
        Ok(())
    }
}
