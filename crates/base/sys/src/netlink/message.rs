//! A minimal netlink implementation for families without a crate: messages with attributes, requests and replies.
//!
//! It knows no family: the caller interprets the numbers (netlink(7), `linux/netlink.h`).

use std::{io, ops::ControlFlow};

use netlink_sys::{Socket, SocketAddr};

/// The length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const OVERRUN: u16 = 4;
const NESTED: u16 = 0x8000;
/// The bits of an attribute's type without the flags.
const KIND: u16 = 0x3fff;

/// The length of `struct genlmsghdr`, behind which the attributes of generic netlink begin.
pub(crate) const GENERIC_HEADER: usize = 4;

pub(crate) const REQUEST: u16 = 0x01;
pub(crate) const ACKNOWLEDGE: u16 = 0x04;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;

/// The body of a message: the header of its family, then attributes.
#[derive(Debug, Clone, Default)]
pub(crate) struct MessageBody(Vec<u8>);

impl MessageBody {
    /// Creates a body with the four-byte header that most families use.
    pub(crate) fn of(header: [u8; 4]) -> Self {
        Self(header.to_vec())
    }

    /// Creates a body with a header of any length.
    pub(crate) fn of_header(header: &[u8]) -> Self {
        Self(header.to_vec())
    }

    /// Appends an attribute with this value.
    pub(crate) fn put(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).expect("attributes are short");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends a 32-bit number in network order, as used by the netfilter families.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Appends a text with a terminating zero.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.put(kind, format!("{value}\0").as_bytes())
    }

    /// Appends a nested attribute.
    pub(crate) fn nest(self, kind: u16, inner: &Self) -> Self {
        self.put(kind | NESTED, &inner.0)
    }

    /// The header and the attributes so far.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The whole message, without a sequence number: its answer is known by its socket.
    pub(crate) fn message(&self, kind: u16, flags: u16) -> Vec<u8> {
        let length = u32::try_from(HEADER + self.0.len()).expect("messages are short");
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.0);
        bytes
    }

    /// Appends all attributes of another body.
    pub(crate) fn join(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }
}

/// Iterates over the attributes in these bytes with their types; a truncated attribute at the end is skipped.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, kind) = (half(rest, 0)?, half(rest, 2)?);
        let value = rest.get(4..length.into())?;
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        Some((kind & KIND, value))
    })
}

/// Returns the value of the first attribute of this type.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// One request: its type, its flags and its body.
pub(crate) struct NetlinkRequest(pub(crate) u16, pub(crate) u16, pub(crate) MessageBody);

/// Room for the longest datagram of an answer: a dump has at most 32 KiB (`netlink_dump` in `net/netlink/af_netlink.c`), and an acknowledgement repeats
/// its request.
const DATAGRAM_MAX: usize = 64 << 10;

/// Receives a datagram into a buffer with room for the longest one. To ask for its length first would be a second system call for each.
pub(crate) fn receive(socket: &Socket, datagram: &mut Vec<u8>) -> io::Result<()> {
    datagram.clear();
    datagram.reserve(DATAGRAM_MAX);
    let length = socket.recv(datagram, libc::MSG_TRUNC)?;
    if length > datagram.len() { Err(garbled()) } else { Ok(()) }
}

/// A socket to one netlink family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
    datagram: Vec<u8>,
}

impl NetlinkSocket {
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, datagram: Vec::new() })
    }

    /// Sends one request that asks for a reply, and returns the bodies before the acknowledgement or the end of the dump.
    pub(crate) fn ask(&mut self, request: NetlinkRequest) -> io::Result<Vec<Vec<u8>>> {
        self.ask_all([request])
    }

    /// Sends requests in one datagram, as a transaction needs; the last request that supports it must ask for an acknowledgement.
    pub(crate) fn ask_all(&mut self, requests: impl IntoIterator<Item = NetlinkRequest>) -> io::Result<Vec<Vec<u8>>> {
        self.send(requests)?;
        let mut answers = Vec::new();
        loop {
            receive(&self.socket, &mut self.datagram)?;
            let mut keep = |body: &[u8]| {
                answers.push(body.to_vec());
                ControlFlow::Continue(())
            };
            if take(&self.datagram, &mut keep)?.is_break() {
                return Ok(answers);
            }
        }
    }

    /// Sends one request for a dump and shows each body of the reply, until the end of the dump or until `show` ends it.
    ///
    /// All datagrams are read into the same buffer. After a dump that `show` ended, the socket holds the rest of it and is of no more use.
    pub(crate) fn dump(
        &mut self,
        request: NetlinkRequest,
        buffer: &mut Vec<u8>,
        mut show: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.send([request])?;
        loop {
            receive(&self.socket, buffer)?;
            if take(buffer, &mut show)?.is_break() {
                return Ok(());
            }
        }
    }

    /// Returns the number of a family of generic netlink, such as `ethtool`, for sockets of `NETLINK_GENERIC`.
    pub(crate) fn family(&mut self, name: &str) -> io::Result<u16> {
        // `linux/genetlink.h`: the control family, its command, and its attributes.
        const CONTROL: u16 = 0x10;
        const GET_FAMILY: u8 = 3;
        const FAMILY_ID: u16 = 1;
        const FAMILY_NAME: u16 = 2;
        let named = MessageBody::of([GET_FAMILY, 1, 0, 0]).text(FAMILY_NAME, name);
        let families = self.ask(NetlinkRequest(CONTROL, ACKNOWLEDGE, named))?;
        let id =
            families.iter().find_map(|answer| attribute(answer.get(GENERIC_HEADER..)?, FAMILY_ID)?.try_into().ok());
        Ok(u16::from_ne_bytes(id.ok_or(rustix::io::Errno::NOENT)?))
    }

    fn send(&mut self, requests: impl IntoIterator<Item = NetlinkRequest>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for NetlinkRequest(kind, flags, body) in requests {
            self.sequence += 1;
            let length = u32::try_from(HEADER + body.0.len()).expect("messages are short");
            bytes.extend_from_slice(&length.to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
            bytes.extend_from_slice(&self.sequence.to_ne_bytes());
            bytes.extend_from_slice(&0_u32.to_ne_bytes());
            bytes.extend_from_slice(&body.0);
        }
        self.socket.send(&bytes, 0).map(drop)
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of netlink is cut off")
}

/// Shows the bodies of the messages of one datagram; breaks if the exchange is complete or `show` ends it.
pub(crate) fn take(mut rest: &[u8], show: &mut impl FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<ControlFlow<()>> {
    while !rest.is_empty() {
        let (length, kind) = (word(rest, 0).ok_or_else(garbled)?, half(rest, 4).ok_or_else(garbled)?);
        let length = usize::try_from(length).map_err(|_| garbled())?;
        let body = rest.get(HEADER..length).ok_or_else(garbled)?;
        match kind {
            // Both start with a negative error number, or with zero on success.
            ERROR | DONE => {
                return match word(body, 0).map_or(0, u32::cast_signed) {
                    0 => Ok(ControlFlow::Break(())),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
            OVERRUN => return Err(rustix::io::Errno::NOBUFS.into()),
            _ if show(body).is_break() => return Ok(ControlFlow::Break(())),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_put_in() {
        let inner = MessageBody::default().number(7, 0x0102_0304);
        let body = MessageBody::of([1, 2, 3, 4]).text(3, "eth0").nest(5, &inner).put(6, &[9]);
        let found: Vec<(u16, &[u8])> = attributes(&body.0[4..]).collect();
        assert_eq!(found[0], (3, b"eth0\0".as_slice()));
        assert_eq!((found[1].0, attribute(found[1].1, 7)), (5, Some([1, 2, 3, 4].as_slice())));
        assert_eq!((found[2], found.len()), ((6, [9].as_slice()), 3));
        assert_eq!(attributes(&[8, 0, 1, 0, 1]).count(), 0, "cut off");
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0, "shorter than its own header");
    }

    #[test]
    fn an_answer_ends_at_its_acknowledgement_and_an_error_is_told() {
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = u32::try_from(HEADER + body.len()).unwrap().to_ne_bytes().to_vec();
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.resize(HEADER, 0);
            bytes.extend_from_slice(body);
            bytes
        };
        let mut answers: Vec<Vec<u8>> = Vec::new();
        let mut keep = |body: &[u8]| {
            answers.push(body.to_vec());
            ControlFlow::Continue(())
        };
        let datagram = [message(40, &[1, 2, 3, 4]), message(ERROR, &0_i32.to_ne_bytes())].concat();
        assert!(take(&datagram, &mut keep).unwrap().is_break());
        let refused = take(&message(ERROR, &(-1_i32).to_ne_bytes()), &mut keep).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(take(&datagram[..18], &mut keep).is_err());
        assert!(take(&message(40, &[]), &mut keep).unwrap().is_continue());
        assert_eq!(answers, [vec![1, 2, 3, 4], Vec::new()]);
        let mut end = |_: &[u8]| ControlFlow::Break(());
        assert!(take(&message(40, &[]), &mut end).unwrap().is_break(), "the reader has enough");
    }
}
