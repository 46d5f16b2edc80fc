//! The options of a lab, for all topologies.

use serde::{Deserialize, Serialize};

use crate::{Device, Error, Result, Uplink};

/// The options of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The MTU of every wire, 68 to 65535 bytes.
    pub mtu_bytes: u32,
    /// The number of queues of every device per direction, 1 to 64.
    pub n_queues: u32,
    /// The number of hosts of a star, or of targets; absent for the usual number.
    pub n_hosts: Option<u32>,
    /// The device between the hosts; absent for a wire.
    pub device: Option<Device>,
    /// Whether a second wire, of another network, joins the two hosts directly beside the device.
    pub has_direct_wire: bool,
    /// The host that is also on a real network; absent if none is.
    pub uplink: Option<Uplink>,
    /// The core for the device; absent if it runs on the core that sends the frames.
    pub device_core: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        // The MTU of Ethernet, and the queues that one core can serve.
        Self {
            mtu_bytes: 1500,
            n_queues: 1,
            n_hosts: None,
            device: None,
            has_direct_wire: false,
            uplink: None,
            device_core: None,
        }
    }
}

impl Options {
    /// Checks the ranges before anything is touched.
    ///
    /// # Errors
    /// [`Error::BadOption`] for the first option out of range.
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
