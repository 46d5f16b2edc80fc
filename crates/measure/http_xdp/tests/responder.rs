//! The responder and clients that use sockets, in two namespaces with a veth between them.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

mod wire;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use fathom_engine::{Error, Test as _, TrialContext};
use fathom_http_xdp::responder::{ADDRESS, AfterAnswer, ResponderPlace, ResponderTest, XdpResponder};
use fathom_model::{
    Endpoints, PeerAddresses, Phases, Role, Settings, Side,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    bpf::XdpMode,
    clock,
    netlink::Netlink,
    policy::{AllowedPeers, Policy},
};
use wire::{CLIENT, CLIENT_DEVICE, SERVER, SERVER_DEVICE, Wire};

const PORT: u16 = 8_080;
/// Far longer than any answer takes, so that a test which fails ends.
const PATIENCE: Duration = Duration::from_secs(10);

impl Wire {
    fn open(
        &self,
        place: &ResponderPlace,
        guests: &AllowedPeers,
        answer: (u64, AfterAnswer),
    ) -> Result<XdpResponder, Error> {
        self.server.enter_with(|| XdpResponder::open(place, guests, (Bytes(answer.0), answer.1))).unwrap()
    }

    /// What a client gets for its requests, each sent when the answer before it is complete, until the server ends or all are answered.
    fn ask(&self, to: &str, n_requests: usize) -> std::io::Result<Vec<u8>> {
        self.ask_at(SocketAddr::new(to.parse().unwrap(), PORT), n_requests)
    }

    fn ask_at(&self, to: SocketAddr, n_requests: usize) -> std::io::Result<Vec<u8>> {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
            for number in 1..=n_requests {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")?;
                if number == n_requests {
                    stream.shutdown(Shutdown::Write)?;
                    stream.read_to_end(&mut received)?;
                } else {
                    let n = stream.read(&mut buffer)?;
                    received.extend_from_slice(&buffer[..n]);
                }
            }
            Ok(received)
        };
        self.client.enter_with(ask).unwrap()
    }
}

fn place(mode: XdpMode) -> ResponderPlace {
    let addresses = SERVER.map(|address| address.parse().unwrap()).to_vec();
    ResponderPlace { device: SERVER_DEVICE.to_owned(), addresses, port: PORT, mode }
}

fn answer(n_body: usize, closing: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {n_body}\r\n{closing}\r\n{}", "x".repeat(n_body)).into_bytes()
}

#[test]
fn clients_with_sockets_get_whole_answers_in_either_mode_and_by_either_version_of_ip() {
    let Some(mut wire) = Wire::up(CLIENT_DEVICE) else { return };
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let responder = wire.open(&place(mode), &AllowedPeers::anybody(), (100, AfterAnswer::KeepsOpen)).unwrap();
        assert_eq!(responder.addresses().len(), 2);
        for to in SERVER {
            assert_eq!(wire.ask(to, 3).unwrap(), answer(100, "").repeat(3), "{mode} {to}");
        }
        let counts = responder.counts().unwrap();
        assert_eq!((counts.syns, counts.requests, counts.no_room, counts.strangers), (2, 6, 0, 0), "{mode}");
        assert_eq!(responder.notes().unwrap(), [], "{mode}");
        drop(responder);
        let responder = wire.open(&place(mode), &AllowedPeers::anybody(), (9, AfterAnswer::Closes)).unwrap();
        for to in SERVER {
            assert_eq!(wire.ask(to, 1).unwrap(), answer(9, "Connection: close\r\n"), "{mode} {to}");
        }
        assert_eq!(responder.counts().unwrap().requests, 2);
        // Generic mode needs no program at the other end.
        wire.pass = None;
    }
}

#[test]
fn a_stranger_gets_no_connection_and_is_counted() {
    let Some(wire) = Wire::up(CLIENT_DEVICE) else { return };
    let guests = AllowedPeers::of(vec![CLIENT[1].parse().unwrap()]);
    let responder = wire.open(&place(XdpMode::Native), &guests, (9, AfterAnswer::Closes)).unwrap();
    assert_eq!(responder.addresses(), [SocketAddr::new(SERVER[1].parse().unwrap(), PORT)], "nobody may ask the other");
    assert_eq!(wire.ask(SERVER[1], 1).unwrap(), answer(9, "Connection: close\r\n"));
    assert_eq!(responder.counts().unwrap().strangers, 0);
    drop(responder);
    let guests = AllowedPeers::of(vec!["198.18.0.0/32".parse().unwrap()]);
    let responder = wire.open(&place(XdpMode::Native), &guests, (9, AfterAnswer::Closes)).unwrap();
    let to = SocketAddr::new(SERVER[0].parse().unwrap(), PORT);
    let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(200)).unwrap_err().kind();
    assert_eq!(wire.client.enter_with(connect).unwrap(), ErrorKind::TimedOut);
    let counts = responder.counts().unwrap();
    assert!(counts.strangers > 0 && counts.sent == 0, "{counts:?}");
}

#[test]
fn an_answer_without_room_in_its_frame_is_counted_and_told() {
    let Some(wire) = Wire::up(CLIENT_DEVICE) else { return };
    let responder = wire.open(&place(XdpMode::Native), &AllowedPeers::anybody(), (1_300, AfterAnswer::Closes)).unwrap();
    let to = SocketAddr::new(SERVER[0].parse().unwrap(), PORT);
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n").unwrap();
        stream.read(&mut [0; 100]).unwrap_err().kind()
    };
    assert_eq!(wire.client.enter_with(ask).unwrap(), ErrorKind::WouldBlock);
    assert!(responder.counts().unwrap().no_room > 0);
    let notes = responder.notes().unwrap();
    assert!(notes[0].id == "no-room" && notes[0].text.contains(SERVER_DEVICE), "{notes:?}");
}

#[test]
fn what_is_not_asked_of_the_responder_goes_on_as_before() {
    let Some(wire) = Wire::up(CLIENT_DEVICE) else { return };
    let responder = wire.open(&place(XdpMode::Native), &AllowedPeers::anybody(), (9, AfterAnswer::Closes)).unwrap();
    let listen = || TcpListener::bind((SERVER[0], 0)).unwrap();
    let listener = wire.server.enter_with(listen).unwrap();
    let to = listener.local_addr().unwrap();
    wire.client.enter_with(|| TcpStream::connect_timeout(&to, PATIENCE).map(drop)).unwrap().unwrap();
    assert_eq!(responder.counts().unwrap(), fathom_http_xdp::responder::XdpResponderCounts::default());
}

#[test]
fn what_stands_in_the_way_is_told_with_the_way_out() {
    let Some(wire) = Wire::up(CLIENT_DEVICE) else { return };
    let refused = |place: &ResponderPlace, answer| {
        let error = wire.open(place, &AllowedPeers::anybody(), answer).map(drop).unwrap_err();
        format!("{error}: {}", error.hint().unwrap_or_default())
    };
    let usual = (9, AfterAnswer::KeepsOpen);
    let native = place(XdpMode::Native);
    let named = |device: &str| ResponderPlace { device: device.to_owned(), ..native.clone() };
    let text = refused(&named("none0"), usual);
    assert!(text.contains("no device `none0`: choose one of: server0"), "{text}");
    let text = refused(&named("lo"), usual);
    assert!(text.contains("lo has no Ethernet address"), "{text}");
    let text = refused(&native, (1_400, AfterAnswer::KeepsOpen));
    assert!(text.contains("at most 1399 bytes"), "{text}");
    assert!(wire.open(&native, &AllowedPeers::anybody(), (1_399, AfterAnswer::KeepsOpen)).is_ok());
    let elsewhere = ResponderPlace { addresses: vec![CLIENT[0].parse().unwrap()], ..native.clone() };
    assert!(refused(&elsewhere, usual).contains("198.18.0.1 is no address of this host"));
    let listener = wire.server.enter_with(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap()).unwrap();
    assert!(refused(&native, usual).contains("a socket of this host has 198.18.0.2:8080"));
    drop(listener);
    let responder = wire.open(&native, &AllowedPeers::anybody(), usual).unwrap();
    let taken = wire.server.enter_with(|| TcpListener::bind(("0.0.0.0", PORT)).map(drop)).unwrap();
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse, "the port belongs to the responder");
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let text = refused(&ResponderPlace { port: 0, ..place(mode) }, usual);
        assert!(text.contains("has an XDP program already"), "{text}");
    }
    drop(responder);
    let lengthen = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link(CLIENT_DEVICE).unwrap().index;
        netlink.set_mtu(index, 9_000).unwrap();
    };
    wire.client.enter_with(lengthen).unwrap();
    let text = refused(&native, usual);
    assert!(text.contains("too large for XDP") && text.contains("ip link set server0 mtu 1500"), "{text}");
}

#[test]
fn a_device_that_is_replaced_is_told() {
    let Some(mut wire) = Wire::up(CLIENT_DEVICE) else { return };
    let responder = wire.open(&place(XdpMode::Native), &AllowedPeers::anybody(), (9, AfterAnswer::Closes)).unwrap();
    assert_eq!(responder.notes().unwrap(), []);
    wire.pass = None;
    let delete = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link(SERVER_DEVICE).unwrap().index;
        netlink.delete_link(index).unwrap();
    };
    wire.server.enter_with(delete).unwrap();
    let notes = responder.notes().unwrap();
    assert!(notes.len() == 1 && notes[0].id == "device-changed", "{notes:?}");
}

fn role(settings: Settings) -> Role {
    Role {
        test: "http".to_owned(),
        kind: "http_xdp".to_owned(),
        side: Side::Responder,
        settings,
        phases: Phases {
            warmup_max_ns: Nanos::ZERO,
            is_warmup_whole: false,
            measure_ns: Nanos::from_secs(10),
            interval_ns: Nanos::from_millis(20),
        },
        address: Some(SERVER[0].parse().unwrap()),
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: PeerAddresses { with: vec![CLIENT[0].parse().unwrap()], ..PeerAddresses::default() },
        seed: 1,
    }
}

#[test]
fn a_role_answers_its_other_side_until_that_has_finished() {
    let Some(wire) = Wire::up(CLIENT_DEVICE) else { return };
    let role = role(Settings::default().with("size", "50").with("keep-alive", "off"));
    let prepare = || ResponderTest::prepare(&role, &Policy::anything());
    let test = wire.server.enter_with(prepare).unwrap().unwrap();
    let address: SocketAddr = test.endpoints()[ADDRESS].parse().unwrap();
    assert_eq!(address.ip(), role.address.unwrap());
    let session = TrialContext::new(clock::now(), role.phases);
    let stop = session.stop.clone();
    let run = std::thread::spawn(move || Box::new(test).run(&session));
    for _ in 0..3 {
        assert_eq!(wire.ask_at(address, 1).unwrap(), answer(50, "Connection: close\r\n"));
    }
    stop.finish();
    let record = run.join().unwrap().unwrap();
    assert_eq!((record.totals["requests"], record.totals["connections"]), (3, 3), "{:?}", record.totals);
    assert!(record.complete && record.notes.is_empty(), "{:?}", record.notes);
}

#[test]
fn a_role_that_cannot_be_answered_says_why() {
    let Some(wire) = Wire::up(CLIENT_DEVICE) else { return };
    let refused = |role: &Role| {
        let prepared = wire.server.enter_with(|| ResponderTest::prepare(role, &Policy::anything()).map(drop));
        let error = prepared.unwrap().unwrap_err();
        format!("{error}: {}", error.hint().unwrap_or_default())
    };
    let usual = || role(Settings::default());
    let text = refused(&Role { address: None, ..usual() });
    assert!(text.contains("loopback has no native XDP"), "{text}");
    let text = refused(&Role { address: Some("192.0.2.1".parse().unwrap()), ..usual() });
    assert!(text.contains("no device of this host has 192.0.2.1"), "{text}");
    let text = refused(&role(Settings::default().with("keep-alive", "5")));
    assert!(text.contains("cannot close one after 5"), "{text}");
}
