//! Data that the kernel attaches to received bytes: times, drops, errors (cmsg(3)).

use std::ffi::c_int;

use fathom_model::units::Nanos;

/// Room for three timestamps and an extended error with an address, the maximum that one receive asks for.
pub(crate) const CONTROL_SIZE: usize = 128;

/// Control messages in the kernel's format, with the alignment of `struct cmsghdr`.
#[derive(Debug, Clone)]
#[repr(C, align(8))]
pub(crate) struct ControlBuffer(pub(crate) [u8; CONTROL_SIZE]);

/// One of the control messages of a receive.
pub(crate) struct ControlMessage<'a> {
    pub(crate) level: c_int,
    pub(crate) kind: c_int,
    pub(crate) value: &'a [u8],
}

/// Iterates over control messages (cmsg(3), 64-bit: length, level, kind, value padded to 8 bytes).
pub(crate) fn control_messages(mut bytes: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    const HEADER: usize = 16;
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(*bytes.first_chunk()?);
        let level = c_int::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
        let kind = c_int::from_ne_bytes(*bytes.get(12..)?.first_chunk()?);
        let value = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(8)..).unwrap_or_default();
        Some(ControlMessage { level, kind, value })
    })
}

/// Parses a `struct timespec`; `None` before the epoch.
pub(crate) fn time(spec: [u8; 16]) -> Option<Nanos> {
    let [secs, nanos] = [0, 8].map(|at: usize| u64::try_from(i64::from_ne_bytes(*spec[at..].first_chunk()?)).ok());
    Some(Nanos::from_secs(secs?) + Nanos(nanos?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_control_messages_end_the_walk() {
        assert_eq!(control_messages(&[]).count(), 0);
        assert_eq!(control_messages(&[0; CONTROL_SIZE]).count(), 0);
        assert_eq!(control_messages(&[0xff; CONTROL_SIZE]).count(), 0);
        let mut short = [0; 24];
        short[0] = 20;
        assert_eq!(control_messages(&short).map(|message| message.value.len()).collect::<Vec<_>>(), [4]);
    }
}
