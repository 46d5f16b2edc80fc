//! Pause frames of the devices of the namespace: generic netlink, because `/proc` does not have them.
//!
//! Most virtual devices have none. Works only on the running system: another root has nothing to query.

use std::{io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::pause::PauseReader;

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Pause {
    reader: Socket<PauseReader>,
    /// Kernels before 5.6 have no such family, which is no loss worth mentioning.
    is_absent: bool,
}

impl Pause {
    pub(super) const fn new() -> Self {
        Self { reader: Socket::new(PauseReader::open), is_absent: false }
    }
}

impl Source for Pause {
    fn name(&self) -> &'static str {
        "pause frames"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::DEV_RX_PAUSE, host::DEV_TX_PAUSE]
    }

    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        if self.is_absent {
            return Ok(());
        }
        let reader = match self.reader.below(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.is_absent = true;
                return Ok(());
            }
            opened => opened?,
        };
        let Some(reader) = reader else { return Ok(()) };
        for device in reader.frames().map_err(cause)? {
            if let Some(received) = device.received {
                out.value(host::DEV_RX_PAUSE, &device.interface, received);
            }
            if let Some(sent) = device.sent {
                out.value(host::DEV_TX_PAUSE, &device.interface, sent);
            }
        }
        Ok(())
    }
}
