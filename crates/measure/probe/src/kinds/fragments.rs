//! The test of fragments: its options, and both of its sides.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsFd,
};

use fathom_engine::{CommandDoc, Consent, Error, NamedTarget, Stop, Test, TestKind, TrialContext};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side,
    names::count::{DUPLICATES, RECEIVED, SENT},
    probe::{FragmentOrderRecord, FragmentsRecord, ProbeRecord},
    units::{Bytes, Nanos, PerSec, grouped},
};
use fathom_sys::{
    clock,
    policy::Policy,
    process::signal::poll_readable,
    socket::{self, Buffer, Socket, Wait, raw_ip::Broadcast},
};

use super::{
    initiator::{FIRST_PORT, empty_record, source},
    metrics::{self, ELSEWHERE, FRAGMENTED_LOST, FRAGMENTED_SENT, JUDGED, LOST, UNEXPECTED, WHOLE_LOST, WHOLE_SENT},
    options::{self, ADDRESS, unsupported},
};
use crate::{
    OwnDevice, RawTransport,
    fragment_test::{self, FragmentConfig, FragmentTest, HeaderLength, IDENTIFICATION_STEP, Order, message},
    pseudo_random,
};

/// The word for all orders that the IP version and the sources allow.
const ALL: &str = "all";
/// The endpoint of a responder beside its address.
const PORT: &str = "port";
/// The port of servers that tell who they are.
const IDENTITY_PORT: u16 = 7701;
/// The longest fragments without an option: the MTU of Ethernet, even if the own device takes more.
const MTU_USUAL: u16 = 1500;
/// The shortest MTU that a link may have (RFC 791 section 3.2, RFC 8200 section 5).
const MTU_MIN_V4: u16 = 68;
const MTU_MIN_V6: u16 = 1280;

/// Which orders of fragments arrive, and whether at the target of their flow.
pub static FRAGMENTS: FragmentsKind = FragmentsKind;

/// The kind of test.
pub struct FragmentsKind;

impl TestKind for FragmentsKind {
    fn name(&self) -> &'static str {
        "probe_fragments"
    }

    fn about(&self) -> &'static str {
        "datagrams in fragments of every order: which arrive, and whether at the target of their flow"
    }

    fn layer(&self) -> Layer {
        Layer::Path
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("fragments").implied_by(&["fragments"]))
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        let consent = Consent::AllowListOutsideLabs;
        Ok(settings.text(options::TARGET).map(|host| NamedTarget { host, port: None, consent }).into_iter().collect())
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text(options::TARGET).is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let size = settings.size("size").map(|size| format!(" of {} B", grouped(size.0))).unwrap_or_default();
        format!("fragments of UDP datagrams{size}")
    }

    /// It ends when the last answer came or is overdue.
    fn ends_with_its_work(&self, _: &Settings) -> bool {
        true
    }

    fn options(&self) -> &'static [OptionDoc] {
        options::FRAGMENTS
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::FRAGMENTS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        named_orders(settings).map(drop)
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(FragmentsInitiator::prepare(role, policy)?),
            Side::Responder => Box::new(FragmentsResponder::prepare(role, policy)?),
        })
    }
}

/// Returns the orders that the option names; nothing for all.
fn named_orders(settings: &Settings) -> Result<Option<Vec<Order>>, Error> {
    let text = settings.text("fragments").unwrap_or_else(|| ALL.to_owned());
    if text == ALL {
        return Ok(None);
    }
    let order = |word: &str| {
        Order::of_word(word).ok_or_else(|| {
            let words: Vec<String> = Order::all().map(Order::word).collect();
            let what = format!("option `fragments`: `{word}` is no order of fragments");
            let lengths =
                format!("in those with a header, the length may be any multiple of 8 up to {}", HeaderLength::MAX);
            unsupported(what, format!("--fragments {ALL}, or some of {}; {lengths}", words.join(",")))
        })
    };
    let mut orders: Vec<Order> = Vec::new();
    for word in text.split(',') {
        let order = order(word.trim())?;
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    Ok(Some(orders))
}

/// Returns the orders to send, which must exist for the IP version and the sources.
fn orders(settings: &Settings, is_ipv4: bool, has_twins: bool) -> Result<Vec<Order>, Error> {
    let fits = |order: &Order| order.is_of(is_ipv4) && (has_twins || *order != Order::SameId);
    let Some(named) = named_orders(settings)? else { return Ok(Order::all().filter(fits).collect()) };
    match named.iter().find(|order| !fits(order)) {
        None => Ok(named),
        Some(Order::SameId) => Err(unsupported(
            "option `fragments`: order `same-id` needs a second source address",
            "--second-source ADDRESS, another address of this host",
        )),
        Some(order) => {
            let what = format!(
                "option `fragments`: order `{}` has headers of IPv6, and the target has an address of IPv4",
                order.word()
            );
            Err(unsupported(what, "--family 6, or an address of IPv6"))
        }
    }
}

/// The length of packets before they are cut, and of the longest fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lengths {
    size: usize,
    mtu: usize,
}

impl Lengths {
    fn of(settings: &Settings, is_ipv4: bool, device_mtu: u16) -> Result<Self, Error> {
        let least = if is_ipv4 { MTU_MIN_V4 } else { MTU_MIN_V6 };
        let asked = settings.size("mtu").unwrap_or_else(|| Bytes(MTU_USUAL.min(device_mtu).into()));
        let mtu = u16::try_from(asked.0).ok().filter(|mtu| (least..=device_mtu).contains(mtu)).ok_or_else(|| {
            let what =
                format!("option `mtu` takes {least} B to {device_mtu} B, the MTU of the own device, not {} B", asked.0);
            unsupported(what, format!("--mtu {}", MTU_USUAL.min(device_mtu)))
        })?;
        let size = settings.size("size").unwrap_or(Bytes(4000));
        let most = Bytes(u64::try_from(message::LENGTH_MAX).unwrap_or(u64::MAX) + if is_ipv4 { 28 } else { 48 });
        if size.0 <= u64::from(mtu) {
            let what = format!("option `size`: a packet of {} B needs no fragments of at most {mtu} B", size.0);
            return Err(unsupported(what, format!("--size {}", u32::from(mtu) * 2)));
        }
        if size > most {
            let what = format!("option `size`: targets answer packets of at most {} B, not {} B", most.0, size.0);
            return Err(unsupported(what, "--size 4000"));
        }
        Ok(Self { size: usize::try_from(size.0).unwrap_or(usize::MAX), mtu: mtu.into() })
    }
}

/// The side that sends.
struct FragmentsInitiator {
    test: FragmentTest,
    transport: RawTransport,
    /// Sockets on the ports of the flows, so that this host does not refuse the answers.
    held: Vec<UdpSocket>,
    target: SocketAddr,
}

impl FragmentsInitiator {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let settings = &role.settings;
        let address = options::destination(role, policy)?;
        if address.is_multicast() || address.is_unspecified() {
            let what = format!("{address} is a group of hosts, and fragments go to one address");
            return Err(unsupported(what, "the address of one host, or of a device in front of targets"));
        }
        let own = source(settings.text("source"), address)?;
        let other = settings.text("second-source").map(|text| source(Some(text), address)).transpose()?;
        if other == Some(own) {
            let what = format!("option `second-source`: {own} is the first source already");
            return Err(unsupported(what, "another address of this host: ip address"));
        }
        let orders = orders(settings, address.is_ipv4(), other.is_some())?;
        let device_mtu = OwnDevice::of(own).ok().flatten().map_or(u16::MAX, |device| device.mtu);
        let Lengths { size, mtu } = Lengths::of(settings, address.is_ipv4(), device_mtu)?;
        let target = SocketAddr::new(address, port(role));
        let what = format!("sending fragments to {target}");
        let transport = RawTransport::open(address, Broadcast::Refused, policy)
            .map_err(|cause| Error::system(what, "CAP_NET_RAW", cause))?;
        let secret = pseudo_random(role.seed ^ clock::now().0, u64::from(std::process::id()));
        let n_flows = count(settings, "flows", 100);
        let mut held = hold(own, n_flows, secret)?;
        let flows = local_addresses(&held)?;
        let twins = other.map(|other| hold(other, n_flows, secret)).transpose()?.unwrap_or_default();
        let twin_addresses = local_addresses(&twins)?;
        held.extend(twins);
        let config = FragmentConfig {
            flows,
            twins: twin_addresses,
            destination: target,
            orders,
            n_datagrams: count(settings, "datagrams", 1),
            size,
            mtu,
            gap: gap(settings)?,
            timeout: options::timeout(settings)?,
            traffic_class: settings.count("traffic-class").and_then(|n| u8::try_from(n).ok()).unwrap_or(0),
            seed: role.seed,
            secret: secret.into(),
        };
        Ok(Self { test: FragmentTest::new(config), transport, held, target })
    }
}

/// Returns the port of the targets: that of the responder, that of the option, or the usual one.
fn port(role: &Role) -> u16 {
    let of_responder = role.peer.get(PORT).and_then(|port| port.parse().ok());
    let of_option = || role.settings.count("port").and_then(|port| u16::try_from(port).ok());
    of_responder.or_else(of_option).unwrap_or(IDENTITY_PORT)
}

fn count(settings: &Settings, name: &str, usual: usize) -> usize {
    settings.count(name).and_then(|n| usize::try_from(n).ok()).unwrap_or(usual)
}

/// Returns the time between two datagrams.
fn gap(settings: &Settings) -> Result<Nanos, Error> {
    let rate = settings.rate("rate").map_or(500.0, PerSec::get);
    let most = 1e9 / f64::from(u32::try_from(IDENTIFICATION_STEP.0).unwrap_or(u32::MAX));
    if !(1.0..=most).contains(&rate) {
        let what = format!(
            "option `rate` takes 1 to {most} datagrams per second, not {rate}: IPv4 has 65,536 identifications, and hosts remember them for 30 s"
        );
        return Err(unsupported(what, "--rate 500"));
    }
    Ok(PerSec::new(rate).and_then(PerSec::gap).unwrap_or(Nanos::from_millis(2)))
}

/// Binds as many ports of an address, from the first one of the secret on. Those in use are skipped.
fn hold(address: IpAddr, n: usize, secret: u32) -> Result<Vec<UdpSocket>, Error> {
    let first = FIRST_PORT + u16::try_from(secret >> 8 & 0x3fff).expect("14 bits are left");
    let mut held = Vec::new();
    for port in first..u16::MAX {
        if held.len() == n {
            break;
        }
        match UdpSocket::bind((address, port)).and_then(|socket| socket.set_nonblocking(true).map(|()| socket)) {
            Ok(socket) => held.push(socket),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => {
                let what = format!("{n} flows need as many UDP ports of {address}, and port {port} failed: {error}");
                return Err(unsupported(what, "fewer --flows, or ulimit -n with a larger number"));
            }
        }
    }
    if held.len() < n {
        let what = format!("{n} flows need as many UDP ports of {address}, and {} are free", held.len());
        return Err(unsupported(what, "fewer --flows"));
    }
    Ok(held)
}

fn local_addresses(held: &[UdpSocket]) -> Result<Vec<SocketAddr>, Error> {
    let address = |socket: &UdpSocket| {
        socket
            .local_addr()
            .map_err(|error| unsupported(format!("a bound socket has no address: {error}"), "ip address"))
    };
    held.iter().map(address).collect()
}

impl Test for FragmentsInitiator {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        while clock::now() < context.start && context.stop.state() == Stop::Continue {
            clock::sleep_until(context.start);
        }
        let start = clock::now().max(context.start);
        let cpu = clock::thread_cpu();
        let end = context.start + context.phases.longest();
        let is_stopped = || context.stop.state() != Stop::Continue || clock::now() >= end;
        let held = &self.held;
        // The sockets hold ports; what arrives there was captured and is read only to keep their buffers empty.
        let mut discard = |flow: usize| while held[flow].recv(&mut [0; 1]).is_ok() {};
        let outcome = fragment_test::run(&mut self.test, &mut self.transport, &is_stopped, &mut discard);
        let now = clock::now();
        let mut record = empty_record(Side::Initiator, context.start, start);
        record.cpu_ns = clock::thread_cpu() - cpu;
        record.measured_ns = (Nanos::ZERO, now.since(context.start).max(Nanos(1)));
        record.complete = matches!(outcome, Ok(false));
        if let Err(cause) = outcome {
            record.errors.count(&cause);
        }
        if record.complete && self.test.n_answered() == 0 {
            return Err(self.nothing_answered());
        }
        self.fill(&mut record);
        Ok(record)
    }
}

impl FragmentsInitiator {
    fn nothing_answered(&self) -> Error {
        let most = self.test.icmp_errors().iter().max_by_key(|(_, n)| **n).map(|(error, _)| format!(": {error}"));
        let n_sent = self.test.n_sent();
        let what = format!(
            "none of {n_sent} whole datagrams to {} was answered{}, so no fragments were sent",
            self.target,
            most.unwrap_or_default()
        );
        let hint = if self.target.is_ipv4() {
            "start `fathom serve --identity` on each target, and check that the device knows them"
        } else {
            "start `fathom serve --identity --listen ::` on each target, and check that the device knows them"
        };
        Error::NoResult { what, hint: hint.to_owned() }
    }

    /// Writes the results to the record.
    fn fill(&self, record: &mut Record) {
        let fragments = self.test.result();
        totals(&fragments, record);
        for (error, n) in self.test.icmp_errors() {
            record.errors.add(error.as_str(), *n);
        }
        for (what, n) in [
            ("longer than the own device takes", self.test.n_too_long()),
            ("this host had no route", self.test.n_no_route()),
        ] {
            if n > 0 {
                record.errors.add(what, n);
            }
        }
        let n_made = fragments.n_fragments(|_| true);
        let n_dropped = crate::ProbeTransport::n_dropped_replies(&self.transport);
        if let Some(n) = n_dropped.filter(|n| *n > 0) {
            let text = format!("{n} packets found no room in our own socket: their datagrams count as lost");
            record.notes.push(Note::new("probe-unheard", text));
        } else if fragments.n_captured < n_made {
            let n = n_made - fragments.n_captured;
            let text = format!(
                "{n} of {n_made} fragments did not leave this host as they were sent: its own connection tracking puts them together first, so \
                 results are about this host as well (nft: add a notrack rule in the output hook)"
            );
            record.notes.push(Note::new("fragments-held-here", text));
        }
        if fragments.answers.len() == 1 {
            let text = "one target answered, so the test cannot show whether fragments reach the target of their flow";
            record.notes.push(Note::new("one-target", text));
        }
        record.probe =
            Some(ProbeRecord { target: self.target.to_string(), fragments: Some(fragments), ..ProbeRecord::default() });
    }
}

/// Writes the sums over all orders.
fn totals(fragments: &FragmentsRecord, record: &mut Record) {
    let sum = |of: &dyn Fn(&FragmentOrderRecord) -> u64| fragments.orders.iter().map(of).sum::<u64>();
    let is_whole = |order: &FragmentOrderRecord| order.order == FragmentOrderRecord::WHOLE;
    let is_due = |order: &FragmentOrderRecord| order.outcome == fathom_model::probe::OrderOutcome::Answered;
    let has_choice = fragments.answers.len() > 1;
    let only = |is_counted: bool, n: u64| if is_counted { n } else { 0 };
    for (name, n) in [
        (SENT, sum(&|order| only(is_due(order), order.n_sent))),
        (RECEIVED, sum(&|order| only(is_due(order), order.n_answered))),
        (LOST, sum(&FragmentOrderRecord::n_lost)),
        (WHOLE_SENT, sum(&|order| only(is_whole(order), order.n_sent))),
        (WHOLE_LOST, sum(&|order| only(is_whole(order), order.n_lost()))),
        (FRAGMENTED_SENT, sum(&|order| only(is_due(order) && !is_whole(order), order.n_sent))),
        (FRAGMENTED_LOST, sum(&|order| only(!is_whole(order), order.n_lost()))),
        (JUDGED, sum(&|order| only(has_choice && !is_whole(order), order.n_answered - order.n_unjudged))),
        (ELSEWHERE, sum(&|order| order.n_elsewhere)),
        (UNEXPECTED, sum(&FragmentOrderRecord::n_unexpected)),
        (DUPLICATES, sum(&|order| order.n_duplicates)),
    ] {
        record.totals.insert(name.to_owned(), n);
    }
}

/// The side that answers, as the only target.
struct FragmentsResponder {
    socket: Socket,
    address: SocketAddr,
    token: u64,
}

/// The name of the responder in its answers.
const RESPONDER: &str = "responder";
/// Room for the datagrams of half a second, in which a busy host may not answer; the kernel limits it to `net.core.rmem_max`.
const BUFFER: Bytes = Bytes(8 << 20);
/// The time between two checks whether the initiator has finished.
const LOOK_UP: Nanos = Nanos::from_millis(5);

impl FragmentsResponder {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let address = role.address.ok_or(Error::Endpoint { kind: "probe_fragments", what: ADDRESS })?;
        let what = format!("receive datagrams at {address}");
        let sources = ["source", "second-source"].into_iter().filter_map(|name| role.settings.text(name));
        let sources = sources.collect::<Vec<_>>().join(",");
        let guests = policy.guests(&role.meeting.with, Some(&sources));
        let open = || {
            let socket = socket::datagram(SocketAddr::new(address, 0), &guests)?;
            socket::set_buffer(&socket, Buffer::Receive, BUFFER)?;
            let address = socket::local_address(&socket)?;
            Ok((socket, address))
        };
        let (socket, address) = open().map_err(|cause| Error::System { what, cause })?;
        Ok(Self { socket, address, token: role.meeting.token })
    }
}

impl Test for FragmentsResponder {
    fn endpoints(&self) -> Endpoints {
        Endpoints::from([
            (ADDRESS.to_owned(), self.address.ip().to_string()),
            (PORT.to_owned(), self.address.port().to_string()),
        ])
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let mut room = vec![0; usize::from(u16::MAX)];
        let mut n_answered = 0;
        let mut record = empty_record(Side::Responder, context.start, context.start);
        while context.stop.state() == Stop::Continue {
            let (length, from) = match socket::recv_from(&self.socket, &mut room, Wait::Never) {
                Ok(Some(received)) => received,
                Ok(None) => {
                    poll_readable(&[self.socket.as_fd()], LOOK_UP)
                        .map_err(|cause| Error::System { what: "wait".to_owned(), cause })?;
                    continue;
                }
                // A refused answer is told to the next read.
                Err(error) => {
                    record.errors.count(&error);
                    continue;
                }
            };
            if let Some(answer) = message::answer(&room[..length], (RESPONDER, self.token)) {
                match socket::send_to(&self.socket, &answer, &from, Wait::Never) {
                    Ok(sent) => n_answered += u64::from(sent.is_some()),
                    Err(error) => record.errors.count(&error),
                }
            }
        }
        record.totals.insert(RECEIVED.to_owned(), n_answered);
        record.measured_ns = (Nanos::ZERO, clock::now().since(context.start).max(Nanos(1)));
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &[(&str, &str)]) -> Settings {
        let given = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        given.complete(options::FRAGMENTS).unwrap()
    }

    #[test]
    fn all_orders_are_those_of_the_version_and_named_ones_must_exist() {
        let names = |options: &[(&str, &str)], is_ipv4, has_twins| {
            let orders = orders(&settings(options), is_ipv4, has_twins).map_err(|error| error.to_string())?;
            Ok::<_, String>(orders.into_iter().map(Order::word).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], true, false).unwrap().len(), 9);
        assert_eq!((names(&[], true, true).unwrap().len(), names(&[], false, true).unwrap().len()), (10, 21));
        let lengths = names(&[("fragments", "v6-hbh8,v6-hbh1024,v6-dst40-fragments,v6-hbh8")], false, false).unwrap();
        assert_eq!(lengths, ["v6-hbh8", "v6-hbh1024", "v6-dst40-fragments"]);
        assert_eq!(names(&[("fragments", "reversed, forward")], true, false).unwrap(), ["reversed", "forward"]);
        for (word, part) in
            [("sideways", "no order"), ("same-id", "second source"), ("v6-hbh8", "headers of IPv6"), ("", "no order")]
        {
            let error = names(&[("fragments", word)], true, false).unwrap_err();
            assert!(error.contains(part), "{word}: {error}");
        }
    }

    #[test]
    fn lengths_without_a_fragment_or_below_the_least_mtu_are_refused() {
        let of = |size: &str, mtu: &str, is_ipv4, device| {
            Lengths::of(&settings(&[("size", size), ("mtu", mtu)]), is_ipv4, device).map_err(|error| error.to_string())
        };
        assert_eq!(of("2400", "1500", true, 1500), Ok(Lengths { size: 2400, mtu: 1500 }));
        assert_eq!(Lengths::of(&settings(&[]), true, 9000).unwrap(), Lengths { size: 4000, mtu: 1500 });
        assert_eq!(Lengths::of(&settings(&[]), true, 1400).unwrap(), Lengths { size: 4000, mtu: 1400 });
        for (size, mtu, is_ipv4, part) in [
            ("1500", "1500", true, "needs no fragments"),
            ("20000", "1500", true, "at most 16412 B"),
            ("4000", "67", true, "takes 68 B to 1500 B"),
            ("4000", "1279", false, "takes 1280 B"),
            ("4000", "1501", true, "the MTU of the own device"),
        ] {
            let error = of(size, mtu, is_ipv4, 1500).unwrap_err();
            assert!(error.contains(part), "{size} {mtu}: {error}");
        }
    }

    #[test]
    fn a_rate_that_would_use_identifications_twice_is_refused() {
        let of = |rate: &str| gap(&settings(&[("rate", rate)])).map_err(|error| error.to_string());
        assert_eq!((of("2k/s"), of("500/s")), (Ok(Nanos::from_micros(500)), Ok(Nanos::from_millis(2))));
        assert!(of("2001/s").unwrap_err().contains("1 to 2000"));
    }
}
