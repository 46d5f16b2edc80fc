//! Datagrams that are answered from the address that they were sent to.
//!
//! A server that listens on all addresses would otherwise answer from the address that the route back chooses, and a client that asked
//! another one does not take that answer. Needs no privilege (`IP_PKTINFO` of ip(7), `IPV6_PKTINFO` of ipv6(7)).

use std::{ffi::c_int, net::SocketAddr, os::fd::AsFd};

use rustix::io::Errno;
use socket2::Socket;

use crate::{
    Error, Result,
    socket::{
        self, Sender, Wait,
        control_message::{CONTROL_SIZE, ControlBuffer, ControlMessage},
        stamped_message::{SendTarget, StampedMessage, send_with_control},
    },
};

/// The header of a control message.
const HEADER: usize = 16;
/// `struct in6_pktinfo`, the longer of the two.
const INFO_MAX: usize = 20;

/// A received datagram: who sent it, and to which of our addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The number of its bytes that fitted.
    pub n_bytes: usize,
    sender: Sender,
    /// The level and kind of the control message for the answer, and its value.
    info: Option<(c_int, c_int, Vec<u8>)>,
}

impl Question {
    /// Who says to have sent it; `None` if that is no IP address.
    #[must_use]
    pub fn sender_address(&self) -> Option<SocketAddr> {
        self.sender.address()
    }
}

/// Makes the kernel tell the address that each datagram was sent to.
///
/// # Errors
/// `setsockopt(IP_PKTINFO)` or `setsockopt(IPV6_RECVPKTINFO)`, if it is not an IP socket.
pub fn enable(socket: &Socket) -> Result<()> {
    if socket::local_address(socket)?.is_ipv4() {
        return socket::set(socket, (libc::SOL_IP, libc::IP_PKTINFO), &1)
            .map_err(socket::error_of("setsockopt(IP_PKTINFO)"));
    }
    socket::set(socket, (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO), &1)
        .map_err(socket::error_of("setsockopt(IPV6_RECVPKTINFO)"))
}

/// Receives a datagram; `None` means not now.
///
/// # Errors
/// `recvmsg`, such as the refusal of an earlier answer.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], wait: Wait) -> Result<Option<Question>> {
    let message = match StampedMessage::receive(socket, bytes, wait.flag()) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(Error::new("recvmsg", error)),
    };
    let info = message.messages().find_map(|control| answer_info(&control));
    Ok(message.sender().map(|sender| Question { n_bytes: message.n_bytes, sender, info }))
}

/// Answers a datagram from the address that it was sent to; `None` means not now.
///
/// # Errors
/// `sendmsg`: the route is gone, or the datagram is too long for the path.
pub fn answer(socket: impl AsFd, bytes: &[u8], question: &Question, wait: Wait) -> Result<Option<usize>> {
    let mut control = ControlBuffer([0; CONTROL_SIZE]);
    let mut length = 0;
    if let Some((level, kind, value)) = &question.info {
        let end = HEADER + value.len();
        control.0[..8].copy_from_slice(&end.to_ne_bytes());
        control.0[8..12].copy_from_slice(&level.to_ne_bytes());
        control.0[12..16].copy_from_slice(&kind.to_ne_bytes());
        control.0[HEADER..end].copy_from_slice(value);
        length = end.next_multiple_of(8);
    }
    let sent =
        send_with_control(socket, bytes, SendTarget::Sender(&question.sender), (&mut control, length), wait.flag());
    match sent {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(Error::new("sendmsg", error)),
    }
}

/// Returns the control message that makes an answer leave from the address of a received one: `struct in_pktinfo` has the interface, the
/// local address and the destination; `struct in6_pktinfo` has the destination and the interface.
fn answer_info(control: &ControlMessage<'_>) -> Option<(c_int, c_int, Vec<u8>)> {
    match (control.level, control.kind) {
        (libc::SOL_IP, libc::IP_PKTINFO) => {
            let destination: [u8; 4] = *control.value.get(8..)?.first_chunk()?;
            let mut value = vec![0; 12];
            value[4..8].copy_from_slice(&destination);
            Some((libc::SOL_IP, libc::IP_PKTINFO, value))
        }
        (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
            let mut value = control.value.get(..INFO_MAX)?.to_vec();
            // A link-local address (fe80::/10) means nothing without its interface; any other answer may leave by another one.
            if value[0] != 0xfe || value[1] & 0xc0 != 0x80 {
                value[16..].fill(0);
            }
            Some((libc::SOL_IPV6, libc::IPV6_PKTINFO, value))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;
    use crate::policy::AllowedPeers;

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        let server = socket::datagram("0.0.0.0:0".parse().unwrap(), &AllowedPeers::anybody()).unwrap();
        enable(&server).unwrap();
        let port = socket::local_address(&server).unwrap().port();
        for asked in ["127.0.0.1", "127.3.2.1"] {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            let asked: SocketAddr = (asked.parse::<std::net::IpAddr>().unwrap(), port).into();
            client.send_to(b"who", asked).unwrap();
            let mut bytes = [0; 8];
            let question = receive(&server, &mut bytes, Wait::Block).unwrap().unwrap();
            assert_eq!(question.n_bytes, 3);
            answer(&server, b"me", &question, Wait::Block).unwrap().unwrap();
            let (count, from) = client.recv_from(&mut bytes).unwrap();
            assert_eq!((count, from), (2, asked));
        }
    }
}
