//! What an impairment of a lab did to the frames that it passed on: its own counters, because no counter of the kernel shows them.
//!
//! It tells them on an abstract UNIX socket of its network namespace, so only the host that is the device has them.

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

/// A longer answer is not that of an impairment: twenty short lines.
const ANSWER_MAX: u64 = 4096;
/// The device answers within microseconds unless this machine is overloaded.
const WAIT_MAX: Duration = Duration::from_millis(50);

pub(super) struct Impairment {
    /// Whether this host is one; decided by the first sample.
    is_here: Option<bool>,
}

impl Impairment {
    pub(super) const fn new() -> Self {
        Self { is_here: None }
    }
}

impl Source for Impairment {
    fn name(&self) -> &'static str {
        "impairment"
    }

    fn counters(&self) -> &'static [&'static str] {
        &host::OF_IMPAIRMENTS
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
        let connected = UnixStream::connect_addr(&SocketAddr::from_abstract_name(host::IMPAIRMENT_SOCKET)?);
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

/// Records the lines `NAME DIRECTION VALUE`; others are skipped.
fn record(text: &str, out: &mut dyn CounterSink) {
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(name), Some(direction), Some(value)) = (words.next(), words.next(), words.next()) else { continue };
        let known = host::OF_IMPAIRMENTS.iter().find(|known| **known == name);
        if let (Some(name), Ok(value)) = (known, value.parse()) {
            out.value(name, direction, value);
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
        record("impair_lost back 12\nimpair_lost back\nimpair_magic back 3\nimpair_reset forward x\n\n", &mut values);
        assert_eq!(values.0, [(host::IMPAIR_LOST, "back".to_owned(), 12)]);
    }
}
