//! A served agent never sends a frame to a third host, whatever roles the holder of a key makes up.

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::LazyLock,
    thread,
    time::Duration,
};

use fastrand::Rng;
use fathom_engine::TestKind;
use fathom_fleet::{
    agent,
    protocol::{self, Decoder, FROM_AGENT_MAX, FromAgent, RoleId, ToAgent},
};
use fathom_model::{
    Endpoints, MacAddress, OptionDoc, PeerAddresses, Phases, Record, Role, Settings, Side, ValueKind,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    clock,
    netlink::{Netlink, Veth, VethEnd, namespace::NetNs},
    packet::packet_socket::{ReceiveBuffer, Receiver},
    policy::Policy,
    process::may_administer_network,
    socket::{
        are_connections_filtered,
        raw_ip::{Broadcast, Sender},
    },
};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::counting::agent_config;

static KINDS: LazyLock<Vec<&'static dyn TestKind>> = LazyLock::new(|| {
    let all = [
        fathom_transport::KINDS,
        fathom_http::KINDS,
        fathom_scenario::KINDS,
        fathom_lua::KINDS,
        fathom_packet::KINDS,
        fathom_probe::kinds::KINDS,
        fathom_interop::KINDS,
    ];
    all.into_iter().flatten().copied().collect()
});

/// The addresses of the controller and the agent.
const CONTROLLER: &str = "198.18.0.1";
const AGENT: &str = "198.18.0.2";
/// A host on another wire of the agent, and the agent's address there.
const THIRD: &str = "198.18.1.3";
const AGENT_BESIDE_THIRD: &str = "198.18.1.2";
const CONTROLLER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 9, 1]);
const THIRD_MAC: MacAddress = MacAddress([2, 0, 0, 0, 9, 3]);
/// The same for IPv6.
const CONTROLLER_V6: &str = "fd00:18::1";
const AGENT_V6: &str = "fd00:18::2";
const THIRD_V6: &str = "fd00:19::3";
const AGENT_BESIDE_THIRD_V6: &str = "fd00:19::2";
/// The number of simultaneous roles, below the agent's limit.
const AT_ONCE: usize = 12;
/// Longer than any role takes after it is told to end.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// The controller and a third host, each on its own wire to the agent.
struct ThreeHosts {
    controller: NetNs,
    agent: NetNs,
    third: NetNs,
}

impl ThreeHosts {
    fn up() -> Self {
        let wires =
            Self { controller: NetNs::new().unwrap(), agent: NetNs::new().unwrap(), third: NetNs::new().unwrap() };
        // Makes an IPv6 address usable at once, without a second of duplicate address detection.
        let at_once = || fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
        for host in [&wires.controller, &wires.agent, &wires.third] {
            host.enter_with(at_once).unwrap();
        }
        for (name, other, mac, addresses) in [
            ("e0", &wires.controller, CONTROLLER_MAC, [[AGENT, AGENT_V6], [CONTROLLER, CONTROLLER_V6]]),
            ("e1", &wires.third, THIRD_MAC, [[AGENT_BESIDE_THIRD, AGENT_BESIDE_THIRD_V6], [THIRD, THIRD_V6]]),
        ] {
            let near = VethEnd { name, mac: None };
            let far = VethEnd { name, mac: Some(mac) };
            let veth = Veth { near, far, far_namespace: Some(other.as_fd()), mtu_bytes: 1500, n_queues: 1 };
            wires.agent.enter_with(|| Netlink::open().unwrap().add_veth(&veth).unwrap()).unwrap();
            for (host, [v4, v6]) in [&wires.agent, other].into_iter().zip(addresses) {
                host.enter_with(|| {
                    let mut netlink = Netlink::open().unwrap();
                    let index = netlink.link(name).unwrap().index;
                    netlink.add_address(index, v4.parse().unwrap(), 24).unwrap();
                    netlink.add_address(index, v6.parse().unwrap(), 64).unwrap();
                    netlink.set_up(index).unwrap();
                    let loopback = netlink.link("lo").unwrap().index;
                    netlink.set_up(loopback).unwrap();
                })
                .unwrap();
            }
        }
        // Packets that claim to come from the third host must reach the agent's sockets through the controller's wire.
        let lenient =
            || ["all", "e0"].map(|name| fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0").unwrap());
        wires.agent.enter_with(lenient).unwrap();
        wires
    }

    /// Captures packets that arrive at the third host from now on.
    fn capture(&self) -> Receiver {
        let open = || {
            let index = Netlink::open().unwrap().link("e1").unwrap().index;
            Receiver::open(index, Bytes(8 << 20)).unwrap()
        };
        self.third.enter_with(open).unwrap()
    }

    fn agent(&self) -> RawController {
        self.agent_of(Policy::served(CONTROLLER.parse().unwrap(), Vec::new()))
    }

    fn agent_of(&self, policy: Policy) -> RawController {
        self.agent_after(policy, || ())
    }

    /// An agent whose threads have begun with something.
    fn agent_after(&self, policy: Policy, begin: fn()) -> RawController {
        let (near, far) = UnixStream::pair().unwrap();
        let config = agent::AgentConfig { kinds: &KINDS, ..agent_config(policy) };
        let output = far.try_clone().unwrap();
        let serve = move || {
            begin();
            agent::serve(far, output, config)
        };
        self.agent.enter_with(|| thread::spawn(serve)).unwrap();
        near.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        RawController { stream: near, decoder: Decoder::new(FROM_AGENT_MAX) }
    }
}

/// Returns whether a frame is an announcement of the kernel itself: group membership by IGMP and MLD, or a router solicitation.
///
/// Neighbor solicitations are not included, because their sender is about to send to that neighbor.
fn is_of_kernel(frame: &[u8]) -> bool {
    const IGMP: u8 = 2;
    const HOP_BY_HOP: u8 = 0;
    const ICMPV6: u8 = 58;
    const ROUTER_SOLICITATION: u8 = 133;
    let byte = |at: usize| frame.get(at).copied();
    let is_v6 = match byte(20) {
        Some(HOP_BY_HOP) => byte(54) == Some(ICMPV6),
        Some(ICMPV6) => byte(54) == Some(ROUTER_SOLICITATION),
        _ => false,
    };
    frame.starts_with(&[0x33, 0x33]) && is_v6 || frame.starts_with(&[1, 0, 0x5e]) && byte(23) == Some(IGMP)
}

/// All frames from the agent, except the kernel's announcements.
fn arrived(capture: &Receiver) -> Vec<Vec<u8>> {
    let (mut inbox, mut seen) = (ReceiveBuffer::default(), Vec::new());
    while capture.wait(Nanos::from_millis(50)).unwrap() && capture.receive(&mut inbox).unwrap() > 0 {
        let frames = inbox.frames().map(|(frame, _)| frame.to_vec());
        seen.extend(frames.filter(|frame| !is_of_kernel(frame) && frame[6..12] != THIRD_MAC.0));
    }
    assert_eq!(capture.take_counts().unwrap().dropped.0, 0, "all that came was looked at");
    seen
}

/// All frames from the agent, the first of which has to come: the kernel sends it once it knows the MAC address of the third host.
fn arrived_once_begun(capture: &Receiver) -> Vec<Vec<u8>> {
    let deadline = clock::now() + PATIENCE;
    loop {
        let seen = arrived(capture);
        if !seen.is_empty() || clock::now() > deadline {
            return seen;
        }
    }
}

/// A hand-written controller.
struct RawController {
    stream: UnixStream,
    decoder: Decoder,
}

impl RawController {
    fn send(&mut self, message: &ToAgent) {
        self.stream.write_all(&protocol::write(message).unwrap()).unwrap();
    }

    fn receive(&mut self) -> Vec<FromAgent> {
        let mut chunk = [0; 8 << 10];
        match self.stream.read(&mut chunk) {
            Ok(n) => {
                assert!(n > 0, "the agent is gone");
                self.decoder.push(&chunk[..n]);
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
        }
        self.send(&ToAgent::Heartbeat);
        std::iter::from_fn(|| self.decoder.frame().unwrap()).map(|frame| protocol::read(&frame).unwrap()).collect()
    }

    fn prepare(&mut self, role_id: u64, role: Role) {
        self.send(&ToAgent::Prepare { role_id: RoleId(role_id), role: Box::new(role), watch: false, keep: false });
    }

    /// The endpoints of a prepared role, or the reason why it is not run.
    fn ready(&mut self, of: u64) -> Result<Endpoints, String> {
        loop {
            for message in self.receive() {
                match message {
                    FromAgent::Ready { role_id, endpoints } if role_id.0 == of => return Ok(endpoints),
                    FromAgent::Failed { role_id: Some(role_id), failure } if role_id.0 == of => {
                        return Err(failure.message);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The record of a role after it was told to end.
    fn outcome(&mut self, of: u64) -> Record {
        loop {
            let outcome = self.receive().into_iter().find_map(|message| match message {
                FromAgent::Outcome { role_id, outcome } if role_id.0 == of => Some(outcome.record),
                _ => None,
            });
            if let Some(record) = outcome {
                return record;
            }
        }
    }

    /// The record of a role after it was told to end; none if it could not measure anything.
    fn ended(&mut self, of: u64) -> Option<Record> {
        loop {
            for message in self.receive() {
                match message {
                    FromAgent::Outcome { role_id, outcome } if role_id.0 == of => return Some(outcome.record),
                    FromAgent::Failed { role_id: Some(role_id), .. } if role_id.0 == of => return None,
                    _ => {}
                }
            }
        }
    }

    /// Runs roles at the same time, each from preparation to end; returns the number that became ready.
    fn play(&mut self, first: u64, roles: Vec<Role>) -> usize {
        let mut open: Vec<u64> = (first..).take(roles.len()).collect();
        let mut n_ready = 0;
        for (role_id, role) in (first..).zip(roles) {
            self.prepare(role_id, role);
        }
        let deadline = clock::now() + PATIENCE;
        while !open.is_empty() {
            assert!(clock::now() < deadline, "a role does not end");
            for message in self.receive() {
                let ended = match message {
                    FromAgent::Ready { role_id, .. } => {
                        n_ready += 1;
                        self.send(&ToAgent::Start { role_id, at: clock::now(), peer_clock: None });
                        self.send(&ToAgent::Finish { role_id });
                        continue;
                    }
                    FromAgent::Failed { role_id: Some(role_id), failure } => {
                        assert!(!failure.message.contains("panicked"), "{}", failure.message);
                        role_id
                    }
                    FromAgent::Outcome { role_id, .. } => role_id,
                    _ => continue,
                };
                open.retain(|role_id| *role_id != ended.0);
            }
        }
        n_ready
    }
}

const PHASES: Phases = Phases {
    warmup_max_ns: Nanos::ZERO,
    is_warmup_whole: false,
    measure_ns: Nanos::from_millis(10),
    interval_ns: Nanos::from_millis(10),
};

fn role(kind: &dyn TestKind, side: Side, settings: Settings) -> Role {
    Role {
        test: "t".to_owned(),
        kind: kind.name().to_owned(),
        side,
        settings,
        phases: PHASES,
        address: Some(AGENT.parse().unwrap()),
        interface: Some("e0".to_owned()),
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: PeerAddresses::default(),
        seed: 7,
    }
}

/// Texts that refer to the third host in different ways.
const TEXTS: &[&str] = &[
    "198.18.1.3",
    "198.18.1.3:7777",
    "198.18.1.0/24",
    "198.18.1.255",
    "255.255.255.255:9",
    "[::ffff:198.18.1.3]:7777",
    "http://198.18.1.3:7777/",
    "http://198.18.0.1@198.18.1.3/",
    "http://198.18.0.1:1/ http://198.18.1.3/",
    "0xc6120103",
    "3323068675",
    "198.18.259",
    "02:00:00:00:09:03",
    "ff:ff:ff:ff:ff:ff",
    "eth > 02:00:00:00:09:03 / ip > 198.18.1.3 / udp",
    "closed 1\nbase http://198.18.1.3:7777/\nstep x\n  GET /\n",
    "closed 1\nstep x\n  GET http://198.18.1.3:7777/\n",
    "step x\n  GET /\n",
    "198.18.0.1:9",
    "fd00:19::3",
    "[fd00:19::3]:7777",
    "http://[fd00:19::3]:7777/",
    "[ff02::1%e1]:7777",
    "[fe80::ff:fe00:903%e1]:7777",
    "eth > 33:33:00:00:00:01 / ip6 > ff02::1 / udp",
    "e1",
    "",
];
/// The targets of crafted roles, and the address that they claim for the agent.
const LEADS: &[(&str, &str)] = &[
    ("198.18.1.3:7777", AGENT),
    ("http://198.18.1.3:7777/", AGENT_BESIDE_THIRD),
    ("[fd00:19::3]:7777", AGENT_V6),
    ("http://[fd00:19::3]:7777/", AGENT_BESIDE_THIRD_V6),
    // Groups, a link-local address (from the MAC, RFC 4291 appendix A), and an IPv4-mapped IPv6 address.
    ("[ff02::1%3]:7777", AGENT_BESIDE_THIRD_V6),
    ("[ff05::2]:7777", AGENT_V6),
    ("[fe80::ff:fe00:903%3]:7777", AGENT_BESIDE_THIRD_V6),
    ("[::ffff:198.18.1.3]:7777", AGENT_BESIDE_THIRD),
    // The agent's own addresses on the other wire, which the controller must not reach either.
    ("198.18.1.2:7777", AGENT_BESIDE_THIRD),
    ("[fd00:19::2]:7777", AGENT_BESIDE_THIRD_V6),
];
/// The keys under which responders of all kinds report their addresses.
const KEYS: &[&str] =
    &["address", "addresses", "address_up", "address_down", "address_probe", "address_v6", "mac", "port", "trial"];

fn any<'a>(rng: &mut Rng, texts: &[&'a str]) -> &'a str {
    texts[rng.usize(..texts.len())]
}

/// A valid value for the option, a small one if possible.
fn value(option: &OptionDoc, rng: &mut Rng) -> String {
    match option.value {
        ValueKind::Count(low, high) | ValueKind::CountOr(low, high, _) => rng.u64(low..=high.min(low + 3)).to_string(),
        ValueKind::Span => "5ms".to_owned(),
        ValueKind::Size => ["1", "64", "1400"][rng.usize(..3)].to_owned(),
        ValueKind::BitRate => "1M".to_owned(),
        ValueKind::Rate => "1k".to_owned(),
        ValueKind::Choice(words) => any(rng, words).to_owned(),
        ValueKind::Flag => "true".to_owned(),
        _ => any(rng, TEXTS).to_owned(),
    }
}

/// A role as an attacker might write it: valid in form, with wrong targets.
fn made_up(rng: &mut Rng) -> Role {
    let kind = KINDS[rng.usize(..KINDS.len())];
    let mut given = Settings::default();
    for option in kind.options() {
        if rng.u8(..8) == 0 {
            given.set(option.name, value(option, rng));
        }
    }
    let settings = given.complete(kind.options()).unwrap_or(given);
    let side = if rng.bool() { Side::Responder } else { Side::Initiator };
    let mut role = role(kind, side, settings);
    for key in KEYS {
        let text = if rng.u8(..16) == 0 { any(rng, TEXTS) } else { "198.18.0.1:9" };
        role.peer.insert((*key).to_owned(), text.to_owned());
    }
    let addresses = [AGENT, AGENT_BESIDE_THIRD, THIRD, CONTROLLER, "203.0.113.77", AGENT_V6, THIRD_V6, "ff02::1"];
    if rng.u8(..4) == 0 {
        role.address = rng.bool().then(|| any(rng, &addresses).parse().unwrap());
        role.interface = Some(any(rng, &["e0", "e1", "lo", "none0"]).to_owned());
        role.meeting.with = vec![any(rng, &addresses).parse().unwrap()];
    }
    role.seed = rng.u64(..);
    role
}

/// Roles in which every target is the third host.
fn crafted() -> Vec<Role> {
    let lead = |kind: &&'static dyn TestKind, side, n: usize| {
        let (text, address) = LEADS[n % LEADS.len()];
        let leads = |option: &&OptionDoc| matches!(option.value, ValueKind::Destination);
        let given = kind.options().iter().filter(leads).fold(Settings::default(), |all, one| all.with(one.name, text));
        let settings = given.complete(kind.options()).unwrap_or(given);
        let mut role = role(*kind, side, settings);
        for key in KEYS {
            role.peer.insert((*key).to_owned(), text.to_owned());
        }
        role.peer.insert("mac".to_owned(), "02:00:00:00:09:03".to_owned());
        role.peer.insert("port".to_owned(), "7777".to_owned());
        role.address = Some(address.parse().unwrap());
        role.interface = Some(["e0", "e1"][n % 2].to_owned());
        role.meeting.with = vec![THIRD.parse().unwrap(), THIRD_V6.parse().unwrap()];
        role
    };
    let sides = [Side::Initiator, Side::Responder];
    let of = |(first, kind)| {
        sides.into_iter().flat_map(move |side| [0, 1, first + 2, first + 3].map(|n| lead(kind, side, n)))
    };
    KINDS.iter().enumerate().map(|(idx, kind)| (2 * idx, kind)).flat_map(of).collect()
}

/// Roles of every kind without targets: no address, no peer, and only text options set.
fn leading_nowhere() -> Vec<Role> {
    let nowhere = |kind: &&'static dyn TestKind, side, is_complete: bool| {
        let text = "closed 1\nstep x\n  GET /\n";
        let given = Settings::default();
        let given =
            if kind.options().iter().any(|one| one.name == "script") { given.with("script", text) } else { given };
        let settings = given.complete(kind.options()).ok().filter(|_| is_complete).unwrap_or(given);
        Role { address: None, interface: None, ..role(*kind, side, settings) }
    };
    let sides = [Side::Initiator, Side::Responder];
    let of = |kind| {
        sides.into_iter().flat_map(move |side| [false, true].map(|is_complete| nowhere(kind, side, is_complete)))
    };
    KINDS.iter().flat_map(of).collect()
}

fn lacks_root() -> bool {
    fathom_testkit::lacks_privileges(may_administer_network())
}

#[test]
fn not_one_frame_reaches_a_third_host_whatever_roles_are_made_up() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    let capture = wires.capture();
    let mut agent = wires.agent();
    let mut rng = Rng::with_seed(13);
    let mut roles = crafted();
    assert!(roles.len() >= 100, "{} of {} kinds", roles.len(), KINDS.len());
    roles.extend((0..1_000).map(|_| made_up(&mut rng)));
    let (mut first, mut n_ready) = (1, 0);
    while !roles.is_empty() {
        let batch: Vec<Role> = roles.drain(..roles.len().min(AT_ONCE)).collect();
        let names: Vec<String> = batch.iter().map(|role| format!("{role:?}")).collect();
        let n = batch.len() as u64;
        n_ready += agent.play(first, batch);
        first += n;
        let seen = arrived(&capture);
        assert!(seen.is_empty(), "{seen:x?} of one of\n{}", names.join("\n"));
    }
    assert!(n_ready > 100, "many of them ran: {n_ready}");
    // Actual traffic verifies that the capture sees what is sent.
    let ways = [(AGENT_BESIDE_THIRD, THIRD), (AGENT_BESIDE_THIRD_V6, THIRD_V6), (AGENT_BESIDE_THIRD_V6, "ff02::1%e1")];
    for (from, to) in ways {
        let send = || UdpSocket::bind((from, 0)).unwrap().send_to(b"x", (to, 7)).unwrap();
        wires.agent.enter_with(send).unwrap();
        assert!(!arrived_once_begun(&capture).is_empty(), "the capture sees what is sent to {to}");
    }
}

#[test]
fn a_role_that_leads_nowhere_is_refused_or_played_by_every_kind_without_a_panic() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    // The user's own agent, which no policy stops before it reaches the missing parts.
    let mut agent = wires.agent_of(Policy::anything());
    for (first, roles) in (0..).map(|n| 1 + n * 100).zip(leading_nowhere().chunks(AT_ONCE)) {
        agent.play(first, roles.to_vec());
    }
}

/// The responder of a kind whose trial takes a while, with options, on a host whose owner allows the third host.
fn responder(wires: &ThreeHosts, kind: &str, options: &[(&str, &str)]) -> (RawController, Role, SocketAddr) {
    let mut agent = wires.agent_of(Policy::served(CONTROLLER.parse().unwrap(), vec![THIRD.parse().unwrap()]));
    let kind = fathom_engine::find(&KINDS, kind).unwrap();
    let given = options.iter().fold(Settings::default(), |all, (name, text)| all.with(name, *text));
    let mut role = role(*kind, Side::Responder, given.complete(kind.options()).unwrap());
    role.phases.measure_ns = Nanos::from_secs(5);
    role.meeting.token = 0x0123_4567_89ab_cdef;
    agent.prepare(1, role.clone());
    let told = agent.ready(1).unwrap();
    agent.send(&ToAgent::Start { role_id: RoleId(1), at: clock::now(), peer_clock: None });
    let to = told.get("address").or(told.get("addresses")).unwrap().parse().unwrap();
    (agent, role, to)
}

/// A socket of the controller that the role answers.
fn asks(wires: &ThreeHosts, to: SocketAddr) -> UdpSocket {
    let open = || UdpSocket::bind((CONTROLLER, 7777)).unwrap();
    let socket = wires.controller.enter_with(open).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.connect(to).unwrap();
    socket
}

/// Sends datagrams from the controller with a forged source; returns the total length of their frames.
fn forge(wires: &ThreeHosts, from: &str, to: SocketAddr, payloads: &[&[u8]]) -> usize {
    const ETHERNET: usize = 14;
    let send = || {
        let sender = Sender::open(to.ip(), Broadcast::Refused).unwrap();
        let target = Policy::anything().permit(SocketAddr::new(to.ip(), 0)).unwrap();
        let packets = payloads.iter().map(|payload| datagram((from.parse().unwrap(), 7777), to, payload));
        packets.map(|packet| sender.send(&packet, &target).map(|_| ETHERNET + packet.len()).unwrap()).sum()
    };
    wires.controller.enter_with(send).unwrap()
}

#[test]
fn an_address_that_has_not_proved_itself_gets_no_more_bytes_than_came_from_it() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    let capture = wires.capture();
    let (mut agent, role, to) = responder(&wires, "udp_rr", &[("request", "8"), ("response", "60000")]);
    let token = (role.meeting.token ^ role.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let request = (token << 40 | 1).to_be_bytes();
    // A challenge response without a prior challenge is no proof either.
    let guess = [&[0xfe][..], &[7; 7]].concat();
    let mut claims = vec![&request[..]; 20];
    claims.push(&guess);
    let n_forged = forge(&wires, THIRD, to, &claims);
    let asks = asks(&wires, to);
    let mut room = vec![0; 65_507];
    asks.send(&request).unwrap();
    assert_eq!(asks.recv(&mut room).unwrap(), request.len(), "a challenge is no longer than the request");
    room[0] = 0xfe;
    asks.send(&room[..request.len()]).unwrap();
    forge(&wires, "203.0.113.77", to, &[&request[..]; 3]);
    asks.send(&request).unwrap();
    assert_eq!(asks.recv(&mut room).unwrap(), 60_000, "who has returned it is answered");
    let n_arrived: usize = arrived_once_begun(&capture).iter().map(Vec::len).sum();
    assert!((1..=n_forged).contains(&n_arrived), "{n_arrived} bytes for {n_forged}");
    agent.send(&ToAgent::Finish { role_id: RoleId(1) });
    let record = agent.outcome(1);
    assert_eq!((record.totals["port_dropped"], record.totals["strangers"]), (3, 1), "strangers, and a guess");
    let note = record.notes.iter().find(|note| note.id == "port-dropped").unwrap();
    assert!(note.text.starts_with("3 packets were dropped at the ports of this test"), "{note:?}");
}

/// Gives up all privileges of this thread and of those that it starts.
fn give_up_privileges() {
    let [effective, permitted, inheritable] = [CapabilitySet::empty(); 3];
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
}

/// Connects from the third host and sends a request; returns why nothing came back, or nothing if a host listens for no connection.
fn turned_away(wires: &ThreeHosts, to: SocketAddr, patience: Duration) -> Option<ErrorKind> {
    let connect = || TcpStream::connect_timeout(&to, patience);
    let mut stranger = match wires.third.enter_with(connect).unwrap() {
        Ok(stranger) => stranger,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
        Err(error) => return Some(error.kind()),
    };
    stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 64];
    // The reset may be faster than the request, which tells it then.
    match stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").and_then(|()| stranger.read(&mut answer)) {
        Ok(n) => panic!("{to} sent {:?} to a stranger", &answer[..n]),
        Err(error) => Some(error.kind()),
    }
}

#[test]
fn without_privileges_no_kind_serves_a_stranger_over_tcp() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    let is_filtered = thread::scope(|scope| {
        let look = || {
            give_up_privileges();
            are_connections_filtered().unwrap()
        };
        scope.spawn(look).join().unwrap()
    });
    // Such a kernel keeps strangers away itself, which is the same promise.
    let (expected, patience) = if is_filtered {
        (ErrorKind::TimedOut, Duration::from_millis(300))
    } else {
        (ErrorKind::ConnectionReset, Duration::from_secs(10))
    };
    let policy = Policy::served(CONTROLLER.parse().unwrap(), Vec::new());
    let mut agent = wires.agent_after(policy, give_up_privileges);
    let (mut served, mut n_noted) = (BTreeSet::new(), 0);
    let cases = KINDS.iter().flat_map(|kind| [(kind, AGENT_BESIDE_THIRD), (kind, AGENT_BESIDE_THIRD_V6)]);
    for (role_id, (kind, at)) in (1..).zip(cases) {
        let mut role = role(*kind, Side::Responder, Settings::default().complete(kind.options()).unwrap());
        role.address = Some(at.parse().unwrap());
        role.phases.measure_ns = Nanos::from_secs(60);
        agent.prepare(role_id, role);
        // Some kinds have no such side, or need a privilege.
        let Ok(told) = agent.ready(role_id) else { continue };
        agent.send(&ToAgent::Start { role_id: RoleId(role_id), at: clock::now(), peer_clock: None });
        let addresses = told.values().flat_map(|text| text.split([',', ' '])).filter_map(|text| text.parse().ok());
        let outcomes: Vec<ErrorKind> = addresses.filter_map(|to| turned_away(&wires, to, patience)).collect();
        agent.send(&ToAgent::Finish { role_id: RoleId(role_id) });
        let n_reset = agent.ended(role_id).and_then(|record| record.totals.get("port_reset").copied());
        if outcomes.is_empty() {
            continue;
        }
        assert!(outcomes.iter().all(|outcome| *outcome == expected), "{} at {at}: {outcomes:?}", kind.name());
        served.insert((kind.name(), at));
        n_noted += usize::from(n_reset == Some(outcomes.len() as u64));
    }
    assert!(served.len() >= 24, "of 12 kinds and two versions: {served:?}");
    assert!(is_filtered || n_noted > served.len() / 2, "{n_noted} records count them");
}

/// An IPv4 packet with a UDP datagram, without the optional checksum (RFC 768).
fn datagram(from: (Ipv4Addr, u16), to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let IpAddr::V4(target) = to.ip() else { unreachable!("the wires are of version 4") };
    let length = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(length(28 + payload.len()));
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.0.octets());
    packet.extend(target.octets());
    packet.extend(from.1.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(length(8 + payload.len()));
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

#[test]
fn a_stream_goes_to_no_host_that_a_datagram_claims_to_be_from() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    let capture = wires.capture();
    let (mut agent, role, to) = responder(&wires, "udp_stream_down", &[("rate", "10M")]);
    let message =
        |kind: u8, number: [u8; 8]| [&(role.meeting.token ^ role.seed).to_be_bytes()[..], &[kind], &number].concat();
    let (here, guess) = (message(1, [0; 8]), message(5, [7; 8]));
    let n_forged = forge(&wires, THIRD, to, &[&here, &guess]);
    // The same request from the controller's address, which returns the challenge, starts the stream.
    let asks = asks(&wires, to);
    let mut room = [0; 2000];
    asks.send(&here).unwrap();
    assert_eq!(asks.recv(&mut room).unwrap(), here.len());
    let number = room[9..17].try_into().unwrap();
    asks.send(&message(5, number)).unwrap();
    assert!(asks.recv(&mut room).unwrap() > 100);
    let n_arrived: usize = arrived_once_begun(&capture).iter().map(Vec::len).sum();
    assert!((1..=n_forged).contains(&n_arrived), "{n_arrived} bytes for {n_forged}");
    agent.send(&ToAgent::Abort { role_id: RoleId(1) });
}

#[test]
fn a_stranger_gets_no_connection_to_the_port_of_a_test() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    let mut agent = wires.agent();
    for (role_id, name) in (1..).zip(["tcp_stream_down", "tcp_rr", "tcp_crr", "http_closed"]) {
        let kind = fathom_engine::find(&KINDS, name).unwrap();
        let settings = Settings::default().complete(kind.options()).unwrap();
        let mut role = role(*kind, Side::Responder, settings);
        role.address = Some(IpAddr::from([0, 0, 0, 0]));
        role.phases.measure_ns = Nanos::from_secs(5);
        agent.prepare(role_id, role);
        let told = agent.ready(role_id).unwrap();
        let port = told["address"].split(',').next().unwrap().parse::<SocketAddr>().unwrap().port();
        let connects = |address: &str| {
            let to = SocketAddr::new(address.parse().unwrap(), port);
            TcpStream::connect_timeout(&to, Duration::from_millis(300)).is_ok()
        };
        assert!(!wires.third.enter_with(|| connects(AGENT_BESIDE_THIRD)).unwrap(), "{name}");
        assert!(wires.controller.enter_with(|| connects(AGENT)).unwrap(), "{name}");
        agent.send(&ToAgent::Abort { role_id: RoleId(role_id) });
    }
}

#[test]
fn frames_of_a_served_host_are_judged_as_outside_labs_in_whatever_namespace_it_runs() {
    if lacks_root() {
        return;
    }
    let wires = ThreeHosts::up();
    // The agent knows the controller's MAC address, as after any exchange with it.
    let know = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("e0").unwrap().index;
        netlink.add_neighbour(index, CONTROLLER.parse().unwrap(), CONTROLLER_MAC).unwrap();
    };
    wires.agent.enter_with(know).unwrap();
    let mut agent = wires.agent();
    let kind = fathom_engine::find(&KINDS, "frames").unwrap();
    for (role_id, (source, is_played)) in (1..).zip([(AGENT, true), ("203.0.113.77", false)]) {
        let frame = format!("ip {source} > {CONTROLLER} / udp 9 > 9");
        let given = Settings::default().with("frame", frame).with("backend", "socket").with("rate", "1k");
        let mut role = role(*kind, Side::Initiator, given.complete(kind.options()).unwrap());
        let told = [("address", CONTROLLER), ("mac", "02:00:00:00:09:01"), ("port", "9"), ("trial", "1")];
        role.peer = told.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
        agent.prepare(role_id, role);
        match agent.ready(role_id) {
            Ok(_) => assert!(is_played, "{source}"),
            Err(refused) => assert!(!is_played && refused.contains("only in labs"), "{source}: {refused}"),
        }
        agent.send(&ToAgent::Abort { role_id: RoleId(role_id) });
    }
}

#[test]
fn what_the_user_allows_travels_to_an_agent_of_the_users_own() {
    let (stream, far) = UnixStream::pair().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let config = agent::AgentConfig { kinds: &KINDS, ..agent_config(Policy::anything()) };
    let output = far.try_clone().unwrap();
    thread::spawn(move || agent::serve(far, output, config));
    let mut agent = RawController { stream, decoder: Decoder::new(FROM_AGENT_MAX) };
    let kind = fathom_engine::find(&KINDS, "http_closed").unwrap();
    let given = Settings::default().with("url", "http://localhost:1/").with("dns", "connection");
    let settings = given.complete(kind.options()).unwrap();
    let mut role = role(*kind, Side::Initiator, settings);
    role.meeting.within = Some(vec!["192.0.2.0/24".to_owned()]);
    agent.prepare(1, role);
    let refused = agent.ready(1).unwrap_err();
    assert!(refused.starts_with("sending to") && refused.ends_with("is refused"), "{refused}");
}
