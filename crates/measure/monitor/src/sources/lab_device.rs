//! The counters of the device of a lab: the CPU time of its threads, and what an impairment did to the frames that it passed on, because no
//! counter of the kernel shows it.
//!
//! The lab tells them on an abstract UNIX socket of the device's network namespace, so only the host that is the device has them.

use std::{
    io::{self, Read as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
    path::Path,
    time::Duration,
};

use fathom_model::names::host;

use super::{CounterSink, Source};

/// A longer answer is not that of a lab: two lines for each thread, of which a device has at most some dozens.
const ANSWER_MAX: u64 = 64 << 10;
/// The lab answers within microseconds unless this machine is overloaded.
const WAIT_MAX: Duration = Duration::from_millis(50);

pub(super) struct LabDevice {
    /// Whether this host is one; decided by the first sample.
    is_here: Option<bool>,
}

impl LabDevice {
    pub(super) const fn new() -> Self {
        Self { is_here: None }
    }
}

impl Source for LabDevice {
    fn name(&self) -> &'static str {
        "lab device"
    }

    fn counters(&self) -> &'static [&'static str] {
        &host::OF_LAB_DEVICES
    }

    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        if root != Path::new("/") || self.is_here == Some(false) {
            return Ok(());
        }
        let connected = UnixStream::connect_addr(&SocketAddr::from_abstract_name(host::LAB_DEVICE_SOCKET)?);
        let stream = match connected {
            Ok(stream) => stream,
            Err(_) if self.is_here.is_none() => {
                self.is_here = Some(false);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.is_here = Some(true);
        stream.set_read_timeout(Some(WAIT_MAX))?;
        let mut text = String::new();
        stream.take(ANSWER_MAX).read_to_string(&mut text)?;
        record(&text, out);
        Ok(())
    }
}

/// Records the lines `NAME INSTANCE VALUE`; others are skipped.
fn record(text: &str, out: &mut dyn CounterSink) {
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(name), Some(of), Some(value)) = (words.next(), words.next(), words.next()) else { continue };
        let known = host::OF_LAB_DEVICES.iter().find(|known| **known == name);
        if let (Some(name), Ok(value)) = (known, value.parse()) {
            out.value(name, of, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Values(Vec<(&'static str, String, u64)>);

    impl CounterSink for Values {
        fn value(&mut self, name: &'static str, of: &str, value: u64) {
            self.0.push((name, of.to_owned(), value));
        }
    }

    #[test]
    fn lines_of_the_device_are_recorded_and_what_is_none_is_skipped() {
        let mut values = Values::default();
        let text = "impair_lost back 12\nimpair_lost back\nimpair_magic back 3\nimpair_reset forward x\n\ndevice_cpu_ns balance-0 9\n";
        record(text, &mut values);
        let expected = [(host::IMPAIR_LOST, "back", 12), (host::DEVICE_CPU_NS, "balance-0", 9)];
        assert_eq!(values.0, expected.map(|(name, of, value)| (name, of.to_owned(), value)));
    }
}
