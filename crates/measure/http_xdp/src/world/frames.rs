//! The frames of a world: what the server sends, and what ours say.

use std::net::{IpAddr, SocketAddr};

use super::{
    Packet,
    server::{Manners, Unusual},
};
use crate::{
    frame::{ETHERNET, Ends, Layout},
    machine::{Head, Rules, Segment, flag},
    program::{ExpectedAnswer, LoadSetup},
    slots::Slots,
};
use fathom_model::MacAddress;

/// Which Internet protocol a load is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    V4,
    V6,
}

impl Over {
    /// All of them.
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    fn ends(self) -> (IpAddr, SocketAddr) {
        let (own, server) = match self {
            Self::V4 => ("10.77.1.254", "10.77.0.1:80"),
            Self::V6 => ("fd00:77::1:ffff:fffe", "[fd00:77::1]:8080"),
        };
        (own.parse().unwrap(), server.parse().unwrap())
    }
}

/// The slots of a load.
pub(super) const N_SLOTS: u32 = 8;
/// The largest part of an answer in a segment over both protocols.
const HEAD: &str = "HTTP/1.1 200 OK\r\nServer: fathom\r\nContent-Length: ";

/// An answer of so many bytes, head included, with its head's length.
pub(super) fn answer(length: u32, is_last: bool) -> (Vec<u8>, u32) {
    let last = if is_last { "\r\nConnection: close" } else { "" };
    let of = |n_body: usize| format!("{HEAD}{n_body}{last}\r\n\r\n");
    let whole = usize::try_from(length).unwrap();
    // The number of digits depends on the number that they say.
    let n_body = (0..whole).rev().take(100).find(|n_body| of(*n_body).len() + n_body == whole);
    let head = of(n_body.expect("an answer has room for its head"));
    let head_length = u32::try_from(head.len()).unwrap();
    let mut bytes = head.into_bytes();
    bytes.resize(whole, b'x');
    (bytes, head_length)
}

/// An answer of so many bytes in a form that the program cannot follow.
pub(super) fn unusual_answer(form: Unusual, length: u32, is_last: bool) -> Vec<u8> {
    let whole = usize::try_from(length).unwrap();
    let last = if is_last { "\r\nConnection: close" } else { "" };
    let filled = |start: String, end: &str| {
        let mut bytes = start.into_bytes();
        bytes.resize(whole - end.len(), b'x');
        bytes.extend(end.as_bytes());
        bytes
    };
    match form {
        Unusual::Chunked => {
            let (head, end) = (format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked{last}\r\n\r\n"), "\r\n0\r\n\r\n");
            let n_chunk = whole - head.len() - "00000000\r\n".len() - end.len();
            filled(format!("{head}{n_chunk:08x}\r\n"), end)
        }
        Unusual::UntilClose => filled("HTTP/1.1 200 OK\r\nServer: fathom\r\n\r\n".to_owned(), ""),
        Unusual::Interim => {
            let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
            let (rest, _) = answer(length - u32::try_from(interim.len()).unwrap(), is_last);
            [interim.as_bytes(), &rest].concat()
        }
        Unusual::LongHead => {
            let field = format!("HTTP/1.1 200 OK\r\nX: {}\r\n", "y".repeat(1_500));
            let (rest, _) = answer(length - u32::try_from(field.len()).unwrap() + 17, is_last);
            [field.as_bytes(), &rest[17..]].concat()
        }
    }
}

/// The bytes of all answers of a server.
#[derive(Debug)]
pub(super) struct AnswerTexts {
    /// An answer, and the last one of a connection.
    usual: [Vec<u8>; 2],
    /// The same in the unusual form.
    unusual: [Vec<u8>; 2],
}

impl AnswerTexts {
    pub(super) fn of(manners: &Manners) -> Self {
        let length = manners.answer_length;
        let usual = |is_last| {
            if length < ANSWER_MIN { vec![b'x'; usize::try_from(length).unwrap()] } else { answer(length, is_last).0 }
        };
        let unusual =
            |is_last| manners.unusual.map_or_else(Vec::new, |(form, _)| unusual_answer(form, length, is_last));
        Self { usual: [false, true].map(usual), unusual: [false, true].map(unusual) }
    }

    /// The bytes of a segment.
    pub(super) fn payload(&self, packet: &Packet) -> &[u8] {
        let of_form = if packet.is_unusual_answer { &self.unusual } else { &self.usual };
        let [start, length] = [packet.answer_offset, packet.segment.length].map(|n| usize::try_from(n).unwrap());
        if length == 0 { &[] } else { &of_form[usize::from(packet.is_last_answer)][start..start + length] }
    }
}

/// Whoever asks the machine alone may have shorter answers than this, which have no room for a head.
const ANSWER_MIN: u32 = 100;

/// A load with these rules, whose answer has so many bytes, and the request as many as the rules say.
pub(super) fn setup(over: Over, rules: Rules, answer_length: u32) -> LoadSetup {
    let (own, server) = over.ends();
    let shift = u8::try_from(rules.port_mask.count_ones()).unwrap();
    let slots = Slots { first: own, n_addresses: 2, port_first: 0x4000, port_bits: 10, shift, n: N_SLOTS };
    let (bytes, head_length) = answer(answer_length, false);
    let digits_at = HEAD.len();
    let digits = bytes[digits_at..usize::try_from(head_length).unwrap() - 4].to_vec();
    let mut request = b"GET / HTTP/1.1\r\nHost: server\r\nX: ".to_vec();
    request.resize(usize::try_from(rules.request_length).unwrap() - 4, b'y');
    request.extend(b"\r\n\r\n");
    LoadSetup {
        ends: Ends { server, next_hop: MacAddress([2, 0, 0, 0, 0, 1]), own: MacAddress([2, 0, 0, 0, 0, 2]), request },
        slots,
        answer: Some(ExpectedAnswer {
            length: answer_length,
            head_length,
            status: *b"200",
            digits_at: u32::try_from(digits_at).unwrap(),
            digits,
        }),
        rules,
    }
}

/// A frame of the server to one of our ports.
pub(super) fn from_server(
    setup: &LoadSetup,
    to: SocketAddr,
    segment: &Segment,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let layout = Layout::of(to.ip());
    let ends = Ends { server: to, ..setup.ends.clone() };
    let n_segment = u16::try_from(20 + options.len() + payload.len()).unwrap();
    let mut frame = [&setup.ends.own.0[..], &setup.ends.next_hop.0, &layout.ethertype.to_be_bytes()].concat();
    frame.extend(ends.ip_header(setup.ends.server.ip(), n_segment));
    frame.extend(setup.ends.server.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(segment.sequence.to_be_bytes());
    frame.extend(segment.acknowledgement.to_be_bytes());
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    frame.extend([words << 4, segment.flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(options);
    frame.extend(payload);
    frame
}

/// What a frame of ours says, which came from the slot with these ports.
pub(super) fn from_us(setup: &LoadSetup, frame: &[u8]) -> Packet {
    let tcp = usize::from(Layout::of(setup.ends.server.ip()).tcp().unsigned_abs());
    let word = |at: usize| u32::from_be_bytes(*frame[tcp + at..].first_chunk().unwrap());
    let half = |at: usize| u16::from_be_bytes(*frame[at..].first_chunk().unwrap());
    let header = usize::from(frame[tcp + 12] >> 4) * 4;
    assert!(tcp > usize::from(ETHERNET.unsigned_abs()) + 19, "there is an IP header");
    let segment = Segment {
        flags: frame[tcp + 13],
        sequence: word(4),
        acknowledgement: word(8),
        length: u32::try_from(frame.len() - tcp - header).unwrap(),
    };
    let has_range = header == 32 && segment.flags & flag::SYN == 0;
    let port_idx = half(tcp) & setup.slots.port_mask();
    let sack = if has_range { (word(24), word(28)) } else { (0, 0) };
    Packet { port_idx, segment, sack, answer_offset: 0, is_last_answer: false, is_unusual_answer: false }
}

/// What the head of an expected answer says.
pub(super) fn expected_head(length: u32) -> Head {
    Head::Answer { length, is_success: true, closes: false }
}
