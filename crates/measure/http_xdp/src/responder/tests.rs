//! The program frame by frame, in the kernel.

use std::net::{IpAddr, SocketAddr};

use fathom_model::MacAddress;
use fathom_sys::{
    bpf::{Instruction, TestRun, XdpAction},
    policy::Network,
};
use fathom_wire::ChecksumSum;

use super::*;
use crate::{
    frame::{ETHERNET, Ends, HOPS, Layout, PROTOCOL, SEGMENT_MAX, octets},
    machine::{Send, Step, flag},
};

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const CLIENT: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PORT: u16 = 8_080;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const APART: i32 = 0x3fff_ffff;

fn setup(guests: &[&str], (n_body, after): (u64, AfterAnswer)) -> ProgramSetup {
    let addresses: Vec<IpAddr> = ["198.18.0.2", "fd00::2", "198.18.0.3"].map(|address| address.parse().unwrap()).into();
    let guests: Vec<Network> = guests.iter().map(|network| network.parse().unwrap()).collect();
    ProgramSetup {
        own: OWN,
        addresses: with_guests(&addresses, &guests),
        port: PORT,
        guests,
        answer: Answer::new(Bytes(n_body), after).unwrap(),
        segment_max: SEGMENT_MAX,
        numbers_apart: APART,
    }
}

struct Tested {
    setup: ProgramSetup,
    counts: PerCpuArray<{ Counter::WORDS }>,
    program: Program,
}

impl Tested {
    fn new(setup: ProgramSetup) -> Option<Self> {
        let loaded = PerCpuArray::create("fathom_answers", 1).and_then(|counts| {
            let program = Program::load(ProgramType::Xdp, "fathom_respond", &program::program(&setup, &counts))?;
            Ok((counts, program))
        });
        let (counts, program) = fathom_testkit::or_skip(loaded, fathom_sys::Error::is_permission)?;
        Some(Self { setup, counts, program })
    }

    fn run(&self, frame: &[u8]) -> TestRun {
        self.program.test_run(frame, 1).unwrap()
    }

    /// What is sent back for a frame; it is right in all its sums, lengths and addresses.
    fn reply(&self, frame: &[u8]) -> Received {
        let run = self.run(frame);
        assert_eq!(run.value, XdpAction::Transmit as u32, "{frame:x?}");
        let received = Received::read(&run.frame);
        let asked = Received::read(frame);
        assert_eq!((received.from, received.to), (asked.to, asked.from));
        received
    }

    /// Asserts that a frame is dropped, or passes as it came.
    fn is_left(&self, frame: &[u8], action: XdpAction) {
        let run = self.run(frame);
        assert_eq!((run.value, run.frame.as_slice()), (action as u32, frame), "{frame:x?}");
    }

    fn counts(&self) -> XdpResponderCounts {
        XdpResponderCounts::from_words(self.counts.sum(0).unwrap())
    }
}

/// A frame as its receiver reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Received {
    from: SocketAddr,
    to: SocketAddr,
    hops: u8,
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl Received {
    fn read(frame: &[u8]) -> Self {
        let macs = [0, 6].map(|at| MacAddress::from_bytes(&frame[at..at + 6]).unwrap());
        assert!(macs == [OWN, CLIENT] || macs == [CLIENT, OWN], "{frame:x?}");
        let half = |at: i16| u16::from_be_bytes(*frame[usize(at)..].first_chunk().unwrap());
        let word = |at: i16| u32::from_be_bytes(*frame[usize(at)..].first_chunk().unwrap());
        let is_v4 = half(12) == 0x0800;
        let any: IpAddr = if is_v4 { [0; 4].into() } else { [0; 16].into() };
        let layout = Layout::of(any);
        assert_eq!(half(12), layout.ethertype);
        let address = |at: i16| -> IpAddr {
            match frame[usize(at)..usize(at + layout.address)] {
                [a, b, c, d] => [a, b, c, d].into(),
                ref long => <[u8; 16]>::try_from(long).unwrap().into(),
            }
        };
        let (source, destination) = (address(layout.source), address(layout.destination));
        let n_segment = half(layout.length) - layout.counted.unsigned_abs();
        if is_v4 {
            assert_eq!(ChecksumSum::default().add_bytes(&frame[usize(ETHERNET)..34]).value(), 0xffff, "{frame:x?}");
        }
        let segment = &frame[usize(layout.tcp())..][..n_segment.into()];
        let sum = ChecksumSum::default().add_bytes(&octets(source)).add_bytes(&octets(destination));
        let sum = sum.add_word(PROTOCOL.into()).add_word(n_segment).add_bytes(segment);
        assert_eq!(sum.value(), 0xffff, "{frame:x?}");
        let tcp = layout.tcp();
        let n_header = usize::from(segment[12] >> 4) * 4;
        Self {
            from: SocketAddr::new(source, half(tcp)),
            to: SocketAddr::new(destination, half(tcp + 2)),
            hops: frame[usize(layout.hops)],
            flags: segment[13],
            sequence: word(tcp + 4),
            acknowledgement: word(tcp + 8),
            window: half(tcp + 14),
            options: segment[20..n_header].to_vec(),
            payload: segment[n_header..].to_vec(),
        }
    }
}

fn usize(number: i16) -> usize {
    usize::try_from(number).unwrap()
}

/// A frame of a client.
fn frame((from, to): (&str, &str), (send, sequence, acknowledgement): (Send, u32, u32)) -> Vec<u8> {
    let server = SocketAddr::new(to.parse().unwrap(), PORT);
    let ends = Ends { server, next_hop: OWN, own: CLIENT, request: REQUEST.to_vec() };
    let step = Step { send, sequence, acknowledgement, ..Step::default() };
    ends.frame(&step, SocketAddr::new(from.parse().unwrap(), 50_000))
}

const PAIRS: [(&str, &str); 3] = [("198.18.0.1", "198.18.0.2"), ("198.18.0.1", "198.18.0.3"), ("fd00::1", "fd00::2")];
const FIRST: (&str, &str) = PAIRS[0];
const LAST: u32 = u32::MAX - 5;

/// The end of the request, whose number goes through zero.
fn behind_request() -> u32 {
    LAST.wrapping_add(u32::try_from(REQUEST.len()).unwrap())
}

#[test]
fn a_connection_opens_asks_twice_and_ends() {
    let Some(tested) = Tested::new(setup(&[], (612, AfterAnswer::KeepsOpen))) else { return };
    for pair in PAIRS {
        let accepted = tested.reply(&frame(pair, (Send::Syn, LAST, 0)));
        assert_eq!((accepted.flags, accepted.acknowledgement), (flag::SYN | flag::ACK, LAST.wrapping_add(1)));
        let segment_max = if pair.0.contains(':') { 1_440_u16 } else { 1_460 }.to_be_bytes();
        assert_eq!(accepted.options, [2, 4, segment_max[0], segment_max[1]]);
        assert_eq!((accepted.window, accepted.payload.len()), (65_535, 0));
        assert_eq!(accepted.sequence, LAST.wrapping_add_signed(APART));
        assert_eq!(tested.reply(&frame(pair, (Send::Syn, LAST, 0))), accepted, "what comes again is answered alike");
        tested.is_left(&frame(pair, (Send::Ack, LAST, 7)), XdpAction::Drop);
        let answer = tested.reply(&frame(pair, (Send::Request, LAST, 7)));
        assert_eq!((answer.flags, answer.sequence), (flag::ACK | flag::PSH, 7));
        assert_eq!((answer.acknowledgement, answer.options.len()), (behind_request(), 0));
        assert_eq!(answer.payload, tested.setup.answer.bytes());
        assert!(answer.payload.starts_with(b"HTTP/1.1 200 OK\r\nContent-Length: 612\r\n\r\nx"));
        assert_eq!(tested.reply(&frame(pair, (Send::Request, LAST, 7))), answer);
        let end = tested.reply(&frame(pair, (Send::Fin, 9, 8)));
        assert_eq!((end.flags, end.sequence, end.acknowledgement), (flag::FIN | flag::ACK, 8, 10));
    }
    let expected = XdpResponderCounts { syns: 6, requests: 6, sent: 15, unanswered: 3, ..Default::default() };
    assert_eq!(tested.counts(), expected);
}

#[test]
fn a_responder_that_closes_says_so_and_sends_its_fin_with_the_answer() {
    let Some(tested) = Tested::new(setup(&[], (3, AfterAnswer::Closes))) else { return };
    for pair in PAIRS {
        let answer = tested.reply(&frame(pair, (Send::Request, LAST, 7)));
        assert_eq!((answer.flags, answer.acknowledgement), (flag::ACK | flag::PSH | flag::FIN, behind_request()));
        assert_eq!(answer.payload, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nxxx");
        let end = tested.reply(&frame(pair, (Send::Fin, 9, 8)));
        assert_eq!((end.flags, end.sequence, end.acknowledgement), (flag::ACK, 8, 10));
    }
}

/// Changes a byte and leaves the sums as they were: the program does not check those of others, as drivers do.
fn with(mut frame: Vec<u8>, (at, value): (usize, u8)) -> Vec<u8> {
    frame[at] = value;
    frame
}

#[test]
fn a_fin_that_comes_with_the_request_is_answered_with_one() {
    let Some(tested) = Tested::new(setup(&[], (10, AfterAnswer::KeepsOpen))) else { return };
    let asked = with(frame(FIRST, (Send::Request, LAST, 7)), (47, flag::ACK | flag::FIN));
    let run = tested.run(&asked);
    let answer = Received::read(&run.frame);
    assert_eq!((answer.flags, answer.acknowledgement), (flag::ACK | flag::PSH | flag::FIN, behind_request() + 1));
}

#[test]
fn answers_of_all_lengths_have_their_right_sum() {
    for n_body in (0..8).chain([1_398, 1_399, 1_400]) {
        let Some(tested) = Tested::new(setup(&[], (n_body, AfterAnswer::KeepsOpen))) else { return };
        for pair in PAIRS {
            let answer = tested.reply(&frame(pair, (Send::Request, 1, 2)));
            assert_eq!(answer.payload, tested.setup.answer.bytes(), "{n_body}");
        }
    }
}

#[test]
fn what_is_not_for_the_port_at_its_addresses_passes_as_it_came() {
    let Some(tested) = Tested::new(setup(&["198.18.0.0/24", "fd00::/16"], (612, AfterAnswer::KeepsOpen))) else {
        return;
    };
    let request = |pair| frame(pair, (Send::Request, 1, 2));
    let tagged = |frame: Vec<u8>| [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
    let (v4, v6) = (request(FIRST), request(PAIRS[2]));
    let passing = [
        ("other port", with(v4.clone(), (37, 0x91))),
        ("other port, IPv6", with(v6.clone(), (57, 0x91))),
        ("other address", request(("198.18.0.1", "198.18.0.4"))),
        ("other address, IPv6", request(("fd00::1", "fd00::3"))),
        ("other Ethernet address", with(v4.clone(), (5, 9))),
        ("all hosts", [&[0xff; 6], &v4[6..]].concat()),
        ("VLAN", tagged(v4.clone())),
        ("VLAN, IPv6", tagged(v6.clone())),
        ("first fragment", with(v4.clone(), (20, 0x20))),
        ("later fragment", with(v4.clone(), (21, 1))),
        ("IPv4 options", with(v4.clone(), (14, 0x46))),
        ("no IPv4", with(v4.clone(), (14, 0x65))),
        ("UDP", with(v4.clone(), (23, 17))),
        ("IPv6 fragment header", with(v6.clone(), (20, 44))),
        ("no IPv6", with(v6.clone(), (14, 0x45))),
        ("ends in the TCP header", v4[..53].to_vec()),
        ("ends in the TCP header, IPv6", v6[..73].to_vec()),
        ("ends in the IP header", v4[..20].to_vec()),
        ("Ethernet alone", v4[..14].to_vec()),
    ];
    for (what, frame) in passing {
        let run = tested.run(&frame);
        assert_eq!((run.value, run.frame), (XdpAction::Pass as u32, frame), "{what}");
    }
    assert_eq!(tested.counts(), XdpResponderCounts::default());
}

#[test]
fn segments_that_need_no_answer_or_are_not_whole_are_dropped_and_counted() {
    let Some(tested) = Tested::new(setup(&[], (612, AfterAnswer::KeepsOpen))) else { return };
    let request = |pair| frame(pair, (Send::Request, 1, 2));
    let (v4, v6) = (request(FIRST), request(PAIRS[2]));
    let dropped = [
        frame(FIRST, (Send::Ack, 1, 2)),
        frame(FIRST, (Send::Reset, 1, 0)),
        with(v4.clone(), (47, flag::RST | flag::ACK)),
        with(v4.clone(), (47, flag::SYN | flag::ACK)),
        with(v4.clone(), (47, flag::PSH)),
        // The TCP header is shorter than it can be, or longer than the segment.
        with(v4.clone(), (46, 0x40)),
        with(frame(FIRST, (Send::Ack, 1, 2)), (46, 0x60)),
        // The segment is shorter than its header, or longer than the frame.
        with(v4.clone(), (17, 39)),
        with(v4.clone(), (16, 1)),
        with(v6.clone(), (19, 19)),
        with(v6.clone(), (18, 1)),
        v6[..v6.len() - 1].to_vec(),
    ];
    for frame in &dropped {
        tested.is_left(frame, XdpAction::Drop);
    }
    let n = u64::try_from(dropped.len()).unwrap();
    assert_eq!(tested.counts(), XdpResponderCounts { unanswered: n, ..Default::default() });
}

#[test]
fn the_padding_of_a_short_frame_is_no_request() {
    let Some(tested) = Tested::new(setup(&[], (612, AfterAnswer::KeepsOpen))) else { return };
    let mut short = frame(FIRST, (Send::Fin, 1, 2));
    short.resize(60, 0xaa);
    assert_eq!(tested.reply(&short).payload, b"");
    let mut syn = frame(FIRST, (Send::Syn, 1, 0));
    syn.resize(300, 0xaa);
    assert_eq!(tested.run(&syn).frame.len(), 58, "the frame ends with its segment");
}

/// A frame whose hop limit is another one. The sum of an IPv4 header is not checked by the program, as drivers do it.
fn with_hops(frame: Vec<u8>, hops: u8) -> Vec<u8> {
    let at = if frame[12] == 0x08 { 22 } else { 21 };
    with(frame, (at, hops))
}

#[test]
fn an_answer_has_a_hop_less_than_its_request_and_at_most_64() {
    let Some(tested) = Tested::new(setup(&[], (612, AfterAnswer::KeepsOpen))) else { return };
    for pair in PAIRS {
        for send in [Send::Syn, Send::Request, Send::Fin] {
            let asked = frame(pair, (send, 1, 2));
            for (hops, expected) in [(2, 1), (3, 2), (64, 63), (65, 64), (66, 64), (128, 64), (255, 64)] {
                let run = tested.run(&with_hops(asked.clone(), hops));
                assert_eq!(run.value, XdpAction::Transmit as u32, "{hops}");
                assert_eq!(Received::read(&run.frame).hops, expected, "{hops}");
            }
            for spent in [0, 1] {
                tested.is_left(&with_hops(asked.clone(), spent), XdpAction::Drop);
            }
        }
    }
    assert_eq!(tested.counts().unanswered, 3 * 3 * 2);
}

#[test]
fn a_frame_between_two_responders_comes_to_an_end() {
    for after in [AfterAnswer::KeepsOpen, AfterAnswer::Closes] {
        let near = setup(&[], (10, after));
        let far = ProgramSetup {
            own: CLIENT,
            addresses: ["198.18.0.1", "fd00::1"].map(|address| address.parse().unwrap()).into(),
            ..near.clone()
        };
        let (Some(near), Some(far)) = (Tested::new(near), Tested::new(far)) else { return };
        for (pair, source_port_at) in [(FIRST, 34), (PAIRS[2], 54)] {
            for send in [Send::Request, Send::Fin] {
                let mut forged = with_hops(frame(pair, (send, 1, 2)), 255);
                forged[source_port_at..][..2].copy_from_slice(&PORT.to_be_bytes());
                let mut n_sent = 0;
                for responder in [&near, &far].into_iter().cycle() {
                    let run = responder.run(&forged);
                    if run.value == XdpAction::Drop as u32 {
                        break;
                    }
                    assert_eq!(run.value, XdpAction::Transmit as u32, "{send:?}");
                    n_sent += 1;
                    assert!(n_sent <= HOPS, "{send:?}: it goes on");
                    forged = run.frame;
                }
                assert!(n_sent > 0, "{send:?}: the first one answers");
            }
        }
    }
}

#[test]
fn only_guests_are_answered() {
    let cases: &[(&[&str], &str, &str, bool)] = &[
        (&["198.18.0.1"], "198.18.0.1", "198.18.0.2", true),
        (&["198.18.0.1"], "198.18.0.9", "198.18.0.2", false),
        (&["10.0.0.0/8", "198.18.0.0/30"], "198.18.0.3", "198.18.0.2", true),
        (&["10.0.0.0/8", "198.18.0.0/30"], "198.18.0.4", "198.18.0.2", false),
        (&["fd00::/120", "10.0.0.0/8"], "fd00::ff", "fd00::2", true),
        (&["fd00::/120", "10.0.0.0/8"], "fd00::1ff", "fd00::2", false),
        (&["fd00::/33", "fd00:0:8000::1"], "fd00:0:7fff::5", "fd00::2", true),
        (&["fd00::/33", "fd00:0:8000::1"], "fd00:0:8000::1", "fd00::2", true),
        (&["fd00::/33", "fd00:0:8000::1"], "fd00:0:8000::2", "fd00::2", false),
        (&["::/0", "0.0.0.0/0"], "2001:db8::1", "fd00::2", true),
        (&["::/0", "10.0.0.0/8"], "203.0.113.1", "198.18.0.2", false),
        (&["::/0", "0.0.0.0/0"], "203.0.113.1", "198.18.0.2", true),
    ];
    for (guests, from, to, is_guest) in cases {
        let Some(tested) = Tested::new(setup(guests, (10, AfterAnswer::KeepsOpen))) else { return };
        for send in [Send::Syn, Send::Request, Send::Fin] {
            let action = if *is_guest { XdpAction::Transmit } else { XdpAction::Drop };
            assert_eq!(tested.run(&frame((from, to), (send, 1, 2))).value, action as u32, "{guests:?} {from}");
        }
        let counts = tested.counts();
        assert_eq!((counts.sent, counts.strangers), if *is_guest { (3, 0) } else { (0, 3) }, "{guests:?} {from}");
    }
}

#[test]
fn the_longest_program_has_few_instructions() {
    let Some(counts) =
        fathom_testkit::or_skip(PerCpuArray::create("fathom_answers", 1), fathom_sys::Error::is_permission)
    else {
        return;
    };
    let code: Vec<Instruction> =
        program::program(&setup(&["fd00::/8", "10.0.0.0/8"], (1_400, AfterAnswer::Closes)), &counts);
    assert!(code.len() < 1_000, "{}", code.len());
}
