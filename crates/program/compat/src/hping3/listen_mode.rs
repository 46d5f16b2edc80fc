//! `--listen`: prints the data after a signature in received packets, and nothing else.

use std::io::{self, Write as _};

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    netlink::Netlink,
    process::signal,
    socket::raw_ip::{Direction, PacketListener},
};

use super::{FAILED, RUN_MAX, options::Options, show};
use fathom_run::exit::{Exit, UserError, with_privilege_hint};

/// Space for the packets of a few milliseconds.
const BUFFER: Bytes = Bytes(8 << 20);
/// The maximum length of an IP packet.
const PACKET_MAX: usize = 65_536;
/// The longest wait between two checks for a stop request.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// Returns the data after a signature in a packet, or `None` if it has no signature.
fn after_signature<'a>(packet: &'a [u8], signature: &[u8]) -> Option<&'a [u8]> {
    // The device may have padded a short frame.
    let length = match packet.first()? >> 4 {
        4 => usize::from(u16::from_be_bytes(*packet.get(2..)?.first_chunk()?)),
        _ => usize::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?)) + 40,
    };
    let packet = packet.get(..length).unwrap_or(packet);
    let at = packet.windows(signature.len()).position(|window| window == signature)?;
    Some(&packet[at + signature.len()..])
}

/// Returns the index of the named device. Without a name it is zero, which means all devices.
fn device(options: &Options) -> anyhow::Result<u32> {
    let Some(name) = &options.interface else { return Ok(0) };
    let links = Netlink::open()?.links()?;
    let link = links.into_iter().find(|link| link.name == *name);
    let user_error = || UserError::new(FAILED, format!("there is no interface {name}")).with_line("see", "ip link");
    Ok(link.map(|link| link.index).ok_or_else(user_error)?)
}

/// Prints received data until it is stopped, or until the requested number of packets had the signature.
pub(super) fn listen(options: &Options, signature: &str) -> anyhow::Result<Exit> {
    if signature.is_empty() {
        return Err(UserError::new(FAILED, "--listen needs a signature").with_line("use", "--listen SIGNATURE").into());
    }
    let ear = PacketListener::open_device(device(options)?, BUFFER).map_err(|error| {
        let user_error = UserError::new(Exit::Preflight, "listening to packets needs CAP_NET_RAW");
        if error.is_permission() {
            return with_privilege_hint(user_error, "CAP_NET_RAW");
        }
        UserError::new(FAILED, "cannot listen").with_causes(&error)
    })?;
    let signals = signal::watch()?;
    eprintln!("hping3 listen mode");
    let end = clock::now() + RUN_MAX;
    let (mut room, mut n_heard) = (vec![0; PACKET_MAX], 0);
    let is_over = |n_heard: u64| options.count.is_some_and(|count| n_heard >= count);
    while signals.received().is_none() && clock::now() < end && !is_over(n_heard) {
        ear.wait(STOP_CHECK_EVERY)?;
        while let Some(passing) = ear.receive(&mut room)?.filter(|_| !is_over(n_heard)) {
            // Outgoing packets of a loopback device are received too and would be counted twice.
            let packet = Some(&room[..passing.length]).filter(|_| passing.direction == Direction::In);
            if let Some(text) = packet.and_then(|packet| after_signature(packet, signature.as_bytes())) {
                let mut out = io::stdout().lock();
                out.write_all(text)?;
                out.flush()?;
                n_heard += 1;
            }
        }
    }
    io::stderr().write_all(show::tail("", (0, 0), &show::RttStats::default()).as_bytes())?;
    Ok(Exit::Pass)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_a_signature_ends_with_the_packet_and_not_with_its_frame() {
        let mut packet = vec![0x45; 20];
        packet.extend_from_slice(b"xxSIGNhello\0\0\0");
        packet[2..4].copy_from_slice(&31_u16.to_be_bytes());
        assert_eq!(after_signature(&packet, b"SIGN"), Some(&b"hello"[..]));
        assert_eq!(after_signature(&packet, b"sign"), None);
        packet[2..4].copy_from_slice(&9_999_u16.to_be_bytes());
        assert_eq!(after_signature(&packet, b"SIGN"), Some(&b"hello\0\0\0"[..]));
        let mut packet = vec![0x60; 40];
        packet.extend_from_slice(b"SIGN6..");
        packet[4..6].copy_from_slice(&5_u16.to_be_bytes());
        assert_eq!(after_signature(&packet, b"SIGN"), Some(&b"6"[..]));
        assert_eq!(after_signature(&[0x45], b"SIGN"), None);
        assert_eq!(after_signature(&[], b"SIGN"), None);
    }
}
