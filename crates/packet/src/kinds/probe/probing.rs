//! One trial of probes on the kernel's own network, and the side that is probed.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use fathom_engine::{Error, Live, Session, Stop, Test};
use fathom_model::{Endpoints, Note, Record, Role, Settings, Side, Timeline, units::Nanos};
use fathom_sys::{clock, policy::Policy, raw_ip::Broadcast};

use super::{ADDRESS, options};
use crate::probe::{
    Ask, Checksum, Conduct, ConnectLine, Conversation, EchoLine, Event, FlowRule, IpAsk, Line, Order, OwnDevice, Ports,
    RawLine, Step, mixed, source_towards,
};

/// A course of probes that ends in a record.
pub(super) trait Course: crate::probe::Course + Send {
    /// Makes probes what the course needs beyond what the options say, once the way is known.
    fn adapt(&mut self, conversation: &mut Conversation, device_mtu: u16) -> Result<(), Error>;

    /// When the trial begins, and when nothing more is to be sent.
    fn begin(&mut self, start: Nanos, end: Nanos);

    /// How many probes were sent, for a view of a running test.
    fn n_sent(&self) -> u64;

    /// Writes down what came of it.
    fn record(&mut self, now: Nanos, record: &mut Record);
}

/// The initiator of probes, ready to send.
pub(super) struct Probing {
    course: Box<dyn Course>,
    conversation: Conversation,
    line: Way,
    /// What is lost by the second-best way out.
    loss: Option<Note>,
}

/// How probes leave and answers arrive.
type Way = Box<dyn Line<Error = fathom_sys::Error> + Send>;

/// Probes come from here on, below the ports that Linux gives to others, as far as there is room.
const FIRST_PORT: u16 = 16_384;

impl Probing {
    pub(super) fn prepare((role, policy): (&Role, &Policy), mut course: Box<dyn Course>) -> Result<Self, Error> {
        let settings = &role.settings;
        let destination = options::destination(role, policy)?;
        if destination.is_multicast() || destination.is_unspecified() {
            let what = format!("{destination} is a group of hosts, and only one is probed");
            return Err(options::unsupported(what, "the address of one host"));
        }
        let source = source(settings.text("source"), destination)?;
        let byte = |name: &str, usual| settings.count(name).and_then(|n| u8::try_from(n).ok()).unwrap_or(usual);
        // Other trials, here or elsewhere, must not take our answers for theirs.
        let secret = mixed(role.seed ^ clock::now().0, u64::from(std::process::id()));
        let mut conversation = Conversation {
            source,
            destination,
            ask: options::ask(settings, destination),
            ip: IpAsk {
                hops: byte("hop-limit", 64),
                traffic_class: byte("traffic-class", 0),
                identification: None,
                dont_fragment: true,
                ..IpAsk::default()
            },
            ports: Ports {
                destination: options::port(settings),
                source: FIRST_PORT + u16::try_from(secret >> 8 & 0x3fff).expect("14 bits are left"),
            },
            flow: FlowRule::Constant,
            secret,
            payloads: Vec::new(),
            checksum: Checksum::Right,
        };
        // Where the device cannot be told, packets may be as long as IP allows.
        let mtu = OwnDevice::of(source).ok().flatten().map_or(u16::MAX, |device| device.mtu);
        course.adapt(&mut conversation, mtu)?;
        let what = format!("sending {} to {destination}", options::words(settings));
        let (line, loss) = way(&mut conversation, (settings, what), policy)?;
        Ok(Self { course, conversation, line, loss })
    }
}

/// The best way out that the process is allowed, and what is less by it.
fn way(
    conversation: &mut Conversation,
    (settings, what): (&Settings, String),
    policy: &Policy,
) -> Result<(Way, Option<Note>), Error> {
    let destination = conversation.destination;
    match RawLine::open(destination, Broadcast::Refused, policy) {
        Ok(line) => return Ok((Box::new(line), None)),
        Err(cause) if cause.is_permission() => {}
        Err(cause) => return Err(Error::system(what, "CAP_NET_RAW", cause)),
    }
    // A connection is one client's SYN: it has no length of its own, and its answers no hops.
    let is_connect = conversation.ask == Ask::SYN && conversation.flow == FlowRule::PerProbe;
    if is_connect && settings.size("size").is_none() {
        let line = ConnectLine::open(conversation.source, destination, policy)
            .map_err(|cause| Error::System { what: what.clone(), cause })?;
        let text = "without CAP_NET_RAW the kernel's own connections stand for SYN probes: an answer after 0.9 s is lost, what \
                    routers say is not heard, and round trips hold our own system calls";
        return Ok((Box::new(line), Some(unprivileged(text))));
    }
    if conversation.ask == Ask::echo(destination) {
        return echo(conversation, what, policy);
    }
    let hint = "--protocol icmp, which needs no capability where net.ipv4.ping_group_range names a group of yours; or, for \
                round trips and ports, --protocol tcp, which connects";
    Err(options::unsupported(format!("{what} needs CAP_NET_RAW"), hint))
}

fn unprivileged(text: &str) -> Note {
    Note { id: "probe-unprivileged".to_owned(), text: text.to_owned() }
}

/// The kernel's own socket for echo requests; the conversation takes the identifier that it gives.
fn echo(conversation: &mut Conversation, what: String, policy: &Policy) -> Result<(Way, Option<Note>), Error> {
    let open = || {
        let line = EchoLine::open(conversation.source, conversation.destination, policy)?;
        let identifier = line.identifier()?;
        Ok::<_, fathom_sys::Error>((line, identifier))
    };
    let (line, identifier) = match open() {
        Ok(open) => open,
        Err(cause) if cause.is_permission() => {
            let what = format!("{what} needs CAP_NET_RAW, or a group that net.ipv4.ping_group_range names");
            return Err(options::unsupported(what, "sudo sysctl -w net.ipv4.ping_group_range='0 2147483647'"));
        }
        Err(cause) => return Err(Error::System { what, cause }),
    };
    conversation.take_identifier(identifier);
    let text = "without CAP_NET_RAW the kernel's own socket for echo requests sends them: their departures are not stamped, so round \
                trips begin before the system call";
    Ok((Box::new(line), Some(unprivileged(text))))
}

/// The own address that is asked for, or the one from which the kernel would send; nothing is sent for it.
fn source(asked: Option<String>, destination: IpAddr) -> Result<IpAddr, Error> {
    let no_route = |error: std::io::Error| {
        options::unsupported(
            format!("there is no route to {destination}: {error}"),
            format!("ip route get {destination}        (what the kernel knows)"),
        )
    };
    let Some(asked) = asked else {
        return source_towards(destination).map_err(no_route);
    };
    let own = "one of this host's addresses: ip address";
    let address: IpAddr = asked.parse().map_err(|_| options::unsupported(format!("`{asked}` is no address"), own))?;
    // Only an address of this host can be bound: what says it is from elsewhere is for labs alone.
    UdpSocket::bind(SocketAddr::new(address, 0))
        .map_err(|error| options::unsupported(format!("cannot send from {address}: {error}"), own))?;
    if address.is_ipv4() != destination.is_ipv4() || address.is_unspecified() {
        return Err(options::unsupported(format!("no packet from {address} can go to {destination}"), own));
    }
    Ok(address)
}

/// A course that is looked at now and then.
struct Watched<'a> {
    course: &'a mut dyn Course,
    session: &'a Session,
    shown: (Nanos, u64),
}

/// Twice a second, as a live view wants it.
const SHOW_EVERY: Nanos = Nanos::from_millis(500);

impl crate::probe::Course for Watched<'_> {
    fn step(&mut self, now: Nanos) -> Step {
        let (at, n_before) = self.shown;
        if let Some(live) = &self.session.live
            && now.since(at) >= SHOW_EVERY
        {
            let n_sent = self.course.n_sent();
            let (elapsed, span) = (now.since(self.session.start), now.since(at));
            live(Live { elapsed, growth: n_sent - n_before, span, measuring: true, p99: None });
            self.shown = (now, n_sent);
        }
        self.course.step(now)
    }

    fn note(&mut self, event: &Event<'_>, at: Nanos) {
        self.course.note(event, at);
    }
}

impl Test for Probing {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        // The wait for the start is long enough for the kernel to have switched its time stamps on.
        while clock::now() < session.start && session.stop.told() == Stop::GoOn {
            clock::sleep_until(session.start);
        }
        let start = clock::now().max(session.start);
        let cpu = clock::thread_cpu();
        self.course.begin(start, session.start + session.phases.longest());
        let mut watched = Watched { course: self.course.as_mut(), session, shown: (start, 0) };
        let is_stopped = || session.stop.told() != Stop::GoOn;
        let mut conduct =
            Conduct { conversation: &self.conversation, line: self.line.as_mut(), is_stopped: &is_stopped };
        let outcome = conduct.run(&mut watched);
        let now = clock::now();
        let mut record = blank(Side::Initiator, session.start, start);
        record.cpu_ns = clock::thread_cpu() - cpu;
        record.complete = matches!(outcome, Ok(false));
        record.measured_ns = (Nanos::ZERO, now.since(session.start).max(Nanos(1)));
        let probe = record.probe.get_or_insert_default();
        probe.target = self.conversation.destination.to_string();
        self.course.record(now, &mut record);
        if let Err(cause) = outcome {
            if self.course.n_sent() == 0 {
                let what = format!("send to {}", self.conversation.destination);
                return Err(Error::System { what, cause });
            }
            *record.errors.entry(format!("{cause}: {}", cause.source)).or_default() += 1;
        }
        record.notes.extend(self.loss.take());
        let unheard = match self.line.n_unheard() {
            Some(0) => None,
            Some(n) => Some(format!("{n} packets found no room in our own socket: their probes count as lost")),
            None => Some(
                "the kernel does not tell how many packets found no room in our own socket (SO_MEMINFO, Linux 4.12): \
                 their probes count as lost"
                    .to_owned(),
            ),
        };
        record.notes.extend(unheard.map(|text| Note { id: "probe-unheard".to_owned(), text }));
        Ok(record)
    }
}

/// A record in which nothing happened yet.
fn blank(side: Side, agreed: Nanos, began: Nanos) -> Record {
    Record {
        side,
        start_ns: agreed,
        start_late_ns: began.since(agreed),
        measured_ns: (Nanos::ZERO, Nanos::ZERO),
        steady: true,
        complete: true,
        cpu_ns: Nanos::ZERO,
        cpu_ns_by_core: std::collections::BTreeMap::new(),
        timeline: Timeline::default(),
        totals: std::collections::BTreeMap::new(),
        distributions: std::collections::BTreeMap::new(),
        flows: Vec::new(),
        facts: std::collections::BTreeMap::new(),
        users: None,
        probe: None,
        errors: std::collections::BTreeMap::new(),
        notes: Vec::new(),
    }
}

/// The host that is probed: it says where it is, and its kernel does the rest.
pub(super) struct Answering {
    address: IpAddr,
}

impl Answering {
    pub(super) fn prepare(role: &Role) -> Result<Self, Error> {
        let address = role.address.ok_or(Error::Endpoint { kind: "probe", what: ADDRESS })?;
        Ok(Self { address })
    }
}

impl Test for Answering {
    fn endpoints(&self) -> Endpoints {
        Endpoints::from([(ADDRESS.to_owned(), self.address.to_string())])
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        /// How often it looks whether the initiator has finished.
        const LOOK_UP: Nanos = Nanos::from_millis(5);
        while session.stop.told() == Stop::GoOn {
            clock::sleep_until(clock::now() + LOOK_UP);
        }
        let mut record = blank(Side::Responder, session.start, session.start);
        record.measured_ns = (Nanos::ZERO, clock::now().since(session.start).max(Nanos(1)));
        Ok(record)
    }
}

/// An order whose packet has a length.
pub(super) fn with_length(order: Order, length: Option<u16>) -> Order {
    Order { length: order.length.or(length), ..order }
}
