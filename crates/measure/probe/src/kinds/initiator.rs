//! One trial of probes on the kernel's own network, and the host that is probed.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use fathom_engine::{Error, LiveProgress, Stop, Test, TrialContext};
use fathom_model::{Endpoints, Note, Record, Role, Settings, Side, units::Nanos};
use fathom_sys::{clock, policy::Policy, socket::raw_ip::Broadcast};

use super::{
    options::{self, ADDRESS},
    recording_driver::RecordingDriver,
};
use crate::{
    ChecksumMode, ConnectTransport, EchoTransport, FlowRule, IpFields, OwnDevice, ProbeEvent, ProbeKind, ProbePorts,
    ProbeRunner, ProbeStep, ProbeTemplate, ProbeTransport, RawTransport, pseudo_random, source_address_for,
};

/// The initiator of probes, ready to send.
pub(super) struct ProbeInitiator {
    driver: Box<dyn RecordingDriver>,
    template: ProbeTemplate,
    transport: BoxedTransport,
    /// The restrictions of an unprivileged transport.
    transport_note: Option<Note>,
}

/// Sends probes and receives answers.
type BoxedTransport = Box<dyn ProbeTransport<Error = fathom_sys::Error> + Send>;

/// The lowest source port of probes. Probes use ports below Linux's ephemeral ports, as far as there is room.
pub(super) const FIRST_PORT: u16 = 16_384;

impl ProbeInitiator {
    pub(super) fn prepare(role: &Role, policy: &Policy, mut driver: Box<dyn RecordingDriver>) -> Result<Self, Error> {
        let settings = &role.settings;
        let destination = options::destination(role, policy)?;
        if destination.is_multicast() || destination.is_unspecified() {
            let what = format!("{destination} is a group of hosts, and only one is probed");
            return Err(options::unsupported(what, "the address of one host"));
        }
        let source = source(settings.text("source"), destination)?;
        let byte = |name: &str, usual| settings.count(name).and_then(|n| u8::try_from(n).ok()).unwrap_or(usual);
        // Other trials, here or elsewhere, must not mistake our answers for theirs.
        let secret = pseudo_random(role.seed ^ clock::now().0, u64::from(std::process::id()));
        let mut conversation = ProbeTemplate {
            source,
            destination,
            kind: options::probe_kind(settings, destination),
            ip: IpFields {
                hops: byte("hop-limit", 64),
                traffic_class: byte("traffic-class", 0),
                identification: None,
                dont_fragment: true,
                ..IpFields::default()
            },
            ports: ProbePorts {
                destination: options::port(settings),
                source: FIRST_PORT + u16::try_from(secret >> 8 & 0x3fff).expect("14 bits are left"),
            },
            flow: FlowRule::Constant,
            secret,
            payloads: Vec::new(),
            checksum: ChecksumMode::Valid,
        };
        // If the device is unknown, packets may be as long as IP allows.
        let mtu = OwnDevice::of(source).ok().flatten().map_or(u16::MAX, |device| device.mtu);
        driver.adapt_template(&mut conversation, mtu)?;
        let what = format!("sending {} to {destination}", options::describe(settings));
        let (line, loss) = open_transport(&mut conversation, settings, what, policy)?;
        Ok(Self { driver, template: conversation, transport: line, transport_note: loss })
    }
}

/// Opens the best transport that the process may use, and returns a note about its restrictions.
fn open_transport(
    conversation: &mut ProbeTemplate,
    settings: &Settings,
    what: String,
    policy: &Policy,
) -> Result<(BoxedTransport, Option<Note>), Error> {
    let destination = conversation.destination;
    match RawTransport::open(destination, Broadcast::Refused, policy) {
        Ok(line) => return Ok((Box::new(line), None)),
        Err(cause) if cause.is_permission() => {}
        Err(cause) => return Err(Error::system(what, "CAP_NET_RAW", cause)),
    }
    // A connection is a SYN of one client. Its length cannot be set, and its answers carry no TTL.
    let is_connect = conversation.kind == ProbeKind::SYN && conversation.flow == FlowRule::PerProbe;
    if is_connect && settings.size("size").is_none() {
        let line = ConnectTransport::open(conversation.source, destination, policy)
            .map_err(|cause| Error::System { what: what.clone(), cause })?;
        let text = "without CAP_NET_RAW, connections of the kernel replace SYN probes: an answer after 0.9 s counts as lost, messages \
                    of routers are not received, and round trips include our own system calls";
        return Ok((Box::new(line), Some(unprivileged_note(text))));
    }
    if conversation.kind == ProbeKind::echo(destination) {
        return open_echo_transport(conversation, what, policy);
    }
    let hint = "--protocol icmp, which needs no capability where net.ipv4.ping_group_range names a group of yours; or, for \
                round trips and ports, --protocol tcp, which connects";
    Err(options::unsupported(format!("{what} needs CAP_NET_RAW"), hint))
}

fn unprivileged_note(text: &str) -> Note {
    Note::new("probe-unprivileged", text)
}

/// Opens the kernel's socket for echo requests. The template takes over its identifier.
fn open_echo_transport(
    conversation: &mut ProbeTemplate,
    what: String,
    policy: &Policy,
) -> Result<(BoxedTransport, Option<Note>), Error> {
    let open = || {
        let line = EchoTransport::open(conversation.source, conversation.destination, policy)?;
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
    conversation.set_identifier(identifier);
    let text = "without CAP_NET_RAW the kernel's own socket for echo requests sends them: their departures are not stamped, so round \
                trips begin before the system call";
    Ok((Box::new(line), Some(unprivileged_note(text))))
}

/// Returns the requested local address, or the one from which the kernel would send. Sends no packet.
pub(super) fn source(asked: Option<String>, destination: IpAddr) -> Result<IpAddr, Error> {
    let no_route = |error: std::io::Error| {
        options::unsupported(
            format!("there is no route to {destination}: {error}"),
            format!("ip route get {destination}        (the routes of the kernel)"),
        )
    };
    let Some(asked) = asked else {
        return source_address_for(destination).map_err(no_route);
    };
    let own = "one of this host's addresses: ip address";
    let address: IpAddr =
        asked.parse().map_err(|_| options::unsupported(format!("`{asked}` is not an address"), own))?;
    // Only addresses of this host can be bound. Other source addresses are for labs only.
    UdpSocket::bind(SocketAddr::new(address, 0))
        .map_err(|error| options::unsupported(format!("cannot send from {address}: {error}"), own))?;
    if address.is_ipv4() != destination.is_ipv4() || address.is_unspecified() {
        return Err(options::unsupported(format!("no packet from {address} can go to {destination}"), own));
    }
    Ok(address)
}

/// A driver with progress reports.
struct ReportingDriver<'a> {
    driver: &'a mut dyn RecordingDriver,
    context: &'a TrialContext,
    shown: (Nanos, u64),
}

/// The rate of a live view: twice a second.
const SHOW_EVERY: Nanos = Nanos::from_millis(500);

impl crate::ProbeDriver for ReportingDriver<'_> {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        let (at, n_before) = self.shown;
        if let Some(live) = &self.context.live
            && now.since(at) >= SHOW_EVERY
        {
            let n_sent = self.driver.n_sent();
            let (elapsed, span) = (now.since(self.context.start), now.since(at));
            live(LiveProgress { elapsed, growth: n_sent - n_before, span, measuring: true, p99: None });
            self.shown = (now, n_sent);
        }
        self.driver.step(now)
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        self.driver.on_event(event, at);
    }
}

impl Test for ProbeInitiator {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        // The wait for the start gives the kernel enough time to enable its time stamps.
        while clock::now() < context.start && context.stop.state() == Stop::Continue {
            clock::sleep_until(context.start);
        }
        let start = clock::now().max(context.start);
        let cpu = clock::thread_cpu();
        self.driver.set_times(start, context.start + context.phases.longest());
        let mut watched = ReportingDriver { driver: self.driver.as_mut(), context, shown: (start, 0) };
        let is_stopped = || context.stop.state() != Stop::Continue;
        let mut conduct =
            ProbeRunner { template: &self.template, transport: self.transport.as_mut(), is_stopped: &is_stopped };
        let outcome = conduct.run(&mut watched);
        let now = clock::now();
        let mut record = empty_record(Side::Initiator, context.start, start);
        record.cpu_ns = clock::thread_cpu() - cpu;
        record.complete = matches!(outcome, Ok(false));
        record.measured_ns = (Nanos::ZERO, now.since(context.start).max(Nanos(1)));
        let probe = record.probe.get_or_insert_default();
        probe.target = self.template.destination.to_string();
        self.driver.record(now, &mut record);
        if let Err(cause) = outcome {
            if self.driver.n_sent() == 0 {
                let what = format!("send to {}", self.template.destination);
                return Err(Error::System { what, cause });
            }
            record.errors.count(&cause);
        }
        record.notes.extend(self.transport_note.take());
        let unheard = match self.transport.n_dropped_replies() {
            Some(0) => None,
            Some(n) => Some(format!("{n} packets found no room in our own socket: their probes count as lost")),
            None => Some(
                "the kernel does not count packets without room in our own socket (SO_MEMINFO, Linux 4.12): \
                 their probes count as lost"
                    .to_owned(),
            ),
        };
        record.notes.extend(unheard.map(|text| Note::new("probe-unheard", text)));
        Ok(record)
    }
}

pub(super) fn empty_record(side: Side, agreed: Nanos, began: Nanos) -> Record {
    Record { start_ns: agreed, start_late_ns: began.since(agreed), ..Record::empty(side) }
}

/// The host that is probed. It reports its address, and its kernel does the rest.
pub(super) struct ProbeResponder {
    address: IpAddr,
}

impl ProbeResponder {
    pub(super) fn prepare(role: &Role) -> Result<Self, Error> {
        let address = role.address.ok_or(Error::Endpoint { kind: "probe", what: ADDRESS })?;
        Ok(Self { address })
    }
}

impl Test for ProbeResponder {
    fn endpoints(&self) -> Endpoints {
        Endpoints::from([(ADDRESS.to_owned(), self.address.to_string())])
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        /// The time between two checks whether the initiator has finished.
        const LOOK_UP: Nanos = Nanos::from_millis(5);
        while context.stop.state() == Stop::Continue {
            clock::sleep_until(clock::now() + LOOK_UP);
        }
        let mut record = empty_record(Side::Responder, context.start, context.start);
        record.measured_ns = (Nanos::ZERO, clock::now().since(context.start).max(Nanos(1)));
        Ok(record)
    }
}
