//! The program in the kernel: frame in, frame out.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};

use fathom_model::MacAddress;
use fathom_sys::bpf::XdpAction;

use super::*;
use crate::machine::{Connection, Event, State, flag};

const OWN: [&str; 2] = ["10.0.0.2", "fd00::2"];
const SERVER: [&str; 2] = ["10.0.0.1:80", "[fd00::1]:80"];
/// As nginx writes it.
const ANSWER: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Thu, 26 Nov 2026 14:20:00 GMT\r\nContent-Type: text/html\r\n\
    Content-Length: 5\r\nLast-Modified: Thu, 26 Nov 2026 13:40:00 GMT\r\nConnection: keep-alive\r\nETag: \"6a2f0f4e-264\"\r\n\
    Accept-Ranges: bytes\r\n\r\nhello";
const LAST_ANSWER: &str =
    "HTTP/1.1 404 Not Found\r\nContent-Type: x\r\ncontent-length: 2\r\nConnection: close\r\n\r\nno";

fn setup(version: usize, n: u32) -> LoadSetup {
    let server: SocketAddr = SERVER[version].parse().unwrap();
    let own: IpAddr = OWN[version].parse().unwrap();
    let slots = Slots::divide(own, 1, (0x4000, 14), n).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n".to_vec();
    let find = |text: &str| u32::try_from(ANSWER.find(text).unwrap()).unwrap();
    LoadSetup {
        rules: Rules {
            request_length: u32::try_from(request.len()).unwrap(),
            closes: false,
            is_open_load: false,
            port_mask: slots.port_mask(),
        },
        ends: Ends { server, next_hop: MacAddress([2, 0, 0, 0, 0, 1]), own: MacAddress([2, 0, 0, 0, 0, 2]), request },
        slots,
        answer: Some(ExpectedAnswer {
            length: u32::try_from(ANSWER.len()).unwrap(),
            head_length: find("hello"),
            status: *b"200",
            digits_at: find("5\r\n"),
            digits: b"5".to_vec(),
        }),
    }
}

/// A segment of the server to the port of slot 3.
fn from_server(setup: &LoadSetup, (flags, sequence, acknowledgement): (u8, u32, u32), payload: &str) -> Vec<u8> {
    let place = setup.slots.place(3, 1);
    let layout = crate::frame::Layout::of(place.ip());
    let server = Ends { server: place, ..setup.ends.clone() };
    let length = u16::try_from(20 + payload.len()).unwrap();
    let mut frame = [&setup.ends.own.0[..], &setup.ends.next_hop.0, &layout.ethertype.to_be_bytes()].concat();
    frame.extend(server.ip_header(setup.ends.server.ip(), length));
    frame.extend(setup.ends.server.port().to_be_bytes());
    frame.extend(place.port().to_be_bytes());
    frame.extend(sequence.to_be_bytes());
    frame.extend(acknowledgement.to_be_bytes());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload.as_bytes());
    frame
}

fn row(program: &LoadProgram) -> Connection {
    let words = program.rows.row(3);
    Connection::from_row(&std::array::from_fn(|word| words[word].load(Relaxed)))
}

fn write(program: &LoadProgram, connection: &Connection) {
    for (to, word) in program.rows.row(3).iter().zip(connection.row()) {
        to.store(word, Relaxed);
    }
}

/// Hands a frame to the program; returns the action and the frame that left.
fn run(program: &LoadProgram, frame: &[u8]) -> (u32, Vec<u8>) {
    let run = program.program().test_run(frame, 1).unwrap();
    (run.value, run.frame)
}

#[test]
fn a_connection_lives_in_the_kernel_as_the_machine_says() {
    for version in [0, 1] {
        let setup = setup(version, 1_000);
        let Some(program) = fathom_testkit::or_skip(LoadProgram::load(&setup), fathom_sys::Error::is_permission) else {
            return;
        };
        let place = setup.slots.place(3, 1);
        let mut connection = Connection { send_next: 1_000, ..Connection::default() };
        connection.open(5, setup.rules, &mut crate::machine::Step::default());
        write(&program, &connection);
        let next = connection.send_next;
        let (action, frame) = run(&program, &from_server(&setup, (flag::SYN | flag::ACK, 70, next), ""));
        assert_eq!((action, row(&program).state), (XdpAction::Transmit as u32, State::Waiting));
        let step = crate::machine::Step {
            send: crate::machine::Send::Request,
            sequence: next,
            acknowledgement: 71,
            ..crate::machine::Step::default()
        };
        assert_eq!(frame, setup.ends.frame(&step, place), "the first request, over {place}");
        let next = next + setup.rules.request_length;
        let (_, frame) = run(&program, &from_server(&setup, (flag::ACK, 71, next), ANSWER));
        let step =
            crate::machine::Step { sequence: next, acknowledgement: 71 + u32::try_from(ANSWER.len()).unwrap(), ..step };
        assert_eq!(frame, setup.ends.frame(&step, place), "the second request, over {place}");
        let next = next + setup.rules.request_length;
        let answer = from_server(&setup, (flag::ACK, step.acknowledgement, next), LAST_ANSWER);
        assert_eq!(run(&program, &answer).0, XdpAction::Drop as u32);
        assert_eq!((row(&program).state, row(&program).is_last), (State::AnswerEnded, true));
        let counts = program.counts().unwrap();
        let events = [Event::Opened, Event::Answered, Event::NotSuccess, Event::UnknownAnswer, Event::Stray];
        assert_eq!(events.map(|event| counts.n(event)), [1, 2, 1, 0, 0]);
        let times = program.times().unwrap();
        assert_eq!([times.first_byte, times.last_byte, times.connect].map(|times| times.count()), [2, 2, 1]);
    }
}

/// What the kernel writes about a program (`bpf_prog_show_fdinfo` in `kernel/bpf/syscall.c`).
fn fdinfo(program: &Program, name: &str) -> Option<u64> {
    use std::os::fd::AsRawFd as _;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim_start_matches(':').trim().parse().ok())
}

#[test]
fn the_verifier_has_little_to_do() {
    for version in [0, 1] {
        let setup = setup(version, 1_000);
        let Some(program) = fathom_testkit::or_skip(LoadProgram::load(&setup), fathom_sys::Error::is_permission) else {
            return;
        };
        let n = fdinfo(program.program(), "verified_insns").expect("the kernel counts what it verifies");
        assert!(n < 20_000, "{n} instructions were verified");
    }
}
