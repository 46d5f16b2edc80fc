//! The cost of a frame for the receiving host: frames are injected into its stack as if a device had received them.
//!
//! There is no wire and no other host, so only the receive path is measured: without a receiver, with a packet filter, or up to a
//! socket that is read. This kind controls how far a frame gets, and measures the cost.

mod injector;
mod reader;
mod rules;

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use fathom_engine::{CommandDoc, EndCondition, Error, Test, TestKind, TrialContext, WorkerPool};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, MacAddress, Metric, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{MetricName, UnitAndSense},
};
use fathom_sys::{clock, netlink::Netlink, policy::Policy};

use super::addresses::HostAddresses;
use crate::craft::{self, FrameContext, FrameEndpoint as Station, FrameEndpoints};
use fathom_wire::Mark;
use injector::FrameInjector;
use reader::SocketReader;
use rules::FilterRules;

/// Injects frames flat out and measures the cost of each.
#[derive(Debug, Clone, Copy)]
pub struct StackReceive;

/// The name in plans and errors.
pub const NAME: &str = "stack_receive";

/// How far a frame gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StackDepth {
    /// It ends in the program that builds it. This is the cost of the injection itself.
    Program,
    /// Its protocol is unknown, so the stack drops it directly after its reception.
    Device,
    /// A rule of the packet filter drops it.
    Filter,
    /// Its port is closed. The kernel tells the sender so, up to its rate limit.
    Port,
    /// A socket takes it, and a thread reads it.
    Socket,
}

/// All values of the option `end`, the default first.
const DEPTHS: [(&str, StackDepth); 5] = [
    ("device", StackDepth::Device),
    ("program", StackDepth::Program),
    ("filter", StackDepth::Filter),
    ("port", StackDepth::Port),
    ("socket", StackDepth::Socket),
];
const WORDS: &[&str] = &[DEPTHS[0].0, DEPTHS[1].0, DEPTHS[2].0, DEPTHS[3].0, DEPTHS[4].0];

/// More rules than any firewall checks one by one.
const RULES_MAX: u64 = 20_000;

const OPTIONS: &[OptionDoc] = &[
    OptionDoc {
        name: "end",
        value: ValueKind::Choice(WORDS),
        default: Some("device"),
        help: "how far frames go: an XDP program, the device only, a filter rule, a closed port, a socket",
    },
    OptionDoc {
        name: "rules",
        value: ValueKind::Count(0, RULES_MAX),
        default: Some("0"),
        help: "nftables rules that each packet is compared with; no rule matches",
    },
    OptionDoc {
        name: "size",
        value: ValueKind::Size,
        default: Some("64"),
        help: "frame size on the wire, FCS included: 64 to 1518",
    },
];

// Names of counts.
const INJECTED: &str = "injected";
const DELIVERED: &str = "delivered";
/// Processor time of the thread that builds and receives frames in its system call.
const STACK_CPU_NS: &str = "stack_cpu_ns";
/// Processor time of the thread that reads the socket.
const READER_CPU_NS: &str = "reader_cpu_ns";
/// Packets that the last rule has counted.
const FILTERED: &str = "filtered";
const COUNTERS: &[&str] = &[INJECTED, DELIVERED];

const SOURCE: &str = "docs/methods/stack_receive.md";
const PPS: UnitAndSense = UnitAndSense(Unit::FramesPerSec, Better::Higher);

const fn per_frame(cpu: &'static str, frames: &'static str) -> Derivation {
    Derivation::quotient((Side::Initiator, cpu), (Side::Initiator, frames))
}

const METRICS: &[Metric] = &[
    Metric::of(
        MetricName("cost_stack_ns", "CPU per frame"),
        UnitAndSense::TIME,
        SOURCE,
        per_frame(STACK_CPU_NS, INJECTED),
    ),
    Metric::of(
        MetricName("injected_per_sec", "received by the stack"),
        PPS,
        SOURCE,
        Derivation::rate(Side::Initiator, INJECTED),
    ),
    Metric::of(MetricName("delivered_per_sec", "read"), PPS, SOURCE, Derivation::rate(Side::Initiator, DELIVERED)),
    Metric::of(
        MetricName("cost_reader_ns", "reader's CPU per frame"),
        UnitAndSense::TIME,
        SOURCE,
        per_frame(READER_CPU_NS, DELIVERED),
    ),
];

impl TestKind for StackReceive {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "the cost of a received frame in the network stack, a packet filter, and a socket"
    }

    fn layer(&self) -> Layer {
        Layer::Frames
    }

    fn is_for_labs_only(&self) -> bool {
        true
    }

    fn is_two_sided(&self, _: &Settings) -> bool {
        false
    }

    fn title(&self, settings: &Settings) -> String {
        let size = settings.size("size").map_or(64, |size| size.0);
        let end = settings.text("end").unwrap_or_else(|| "device".to_owned());
        let rules = settings.count("rules").filter(|n| *n > 0).map(|n| format!(", {n} rules")).unwrap_or_default();
        format!("receive {size} B to {end}{rules}")
    }

    fn options(&self) -> &'static [OptionDoc] {
        OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("stack-receive"))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        // The host would answer or forward frames that seem to come from strangers.
        if policy.is_for_others() {
            return Err(unsupported(format!("{NAME} runs on no served host"), "fathom packet --lab pair"));
        }
        Ok(Box::new(StackReceiveTest::prepare(role)?))
    }
}

/// The task of one worker.
#[derive(Debug)]
enum StackTask {
    Inject(FrameInjector),
    Read(SocketReader),
}

/// A test that is ready to inject.
#[derive(Debug)]
struct StackReceiveTest {
    tasks: Vec<StackTask>,
    rules: Option<FilterRules>,
    cores: Vec<usize>,
}

fn unsupported(what: String, hint: &str) -> Error {
    Error::Unsupported { what, hint: Some(hint.to_owned()) }
}

/// The device that seems to receive the frames.
struct InputDevice {
    device: u32,
    mtu_bytes: u32,
    mac: MacAddress,
    address: Ipv4Addr,
}

/// Finds the device and address of a role.
fn input_device(role: &Role) -> Result<InputDevice, Error> {
    let missing = || unsupported(format!("{NAME} needs an interface with an IPv4 address"), "fathom packet --lab pair");
    let Some(name) = &role.interface else { return Err(missing()) };
    let look = || {
        let mut netlink = Netlink::open()?;
        let link = netlink.link(name)?;
        let addresses = HostAddresses::of(role, &mut netlink, link.index)?;
        Ok((link, addresses))
    };
    let failed = |cause| Error::system(format!("find the device {name}"), "CAP_NET_ADMIN", cause);
    let (link, addresses) = look().map_err(failed)?;
    let address = addresses.v4.ok_or_else(missing)?;
    let mac = link.mac;
    let mac = mac.ok_or_else(|| unsupported(format!("{name} has no Ethernet address"), "choose an Ethernet device"))?;
    if !link.is_up {
        return Err(unsupported(format!("{name} is down"), &format!("ip link set {name} up")));
    }
    Ok(InputDevice { device: link.index, mtu_bytes: link.mtu_bytes, mac, address })
}

/// A local experimental `EtherType` (IEEE 802 section 9.2.3). No kernel has a protocol for it.
const NO_PROTOCOL: [u8; 2] = [0x88, 0xb5];
/// The discard port (RFC 863), which is closed.
const CLOSED_PORT: u16 = 9;
/// The first dynamic port (RFC 6335 section 6).
const SOURCE_PORT: u16 = 49_152;

impl InputDevice {
    /// Returns a UDP datagram to a port here, as from another host on the same wire.
    fn frame_to(&self, port: u16, role: &Role) -> Result<Vec<u8>, Error> {
        // The next address, or the previous one if the next is the broadcast address.
        let [a, b, c, d] = self.address.octets();
        let last = if d < 254 { d + 1 } else { d - 1 };
        let mut mac = self.mac;
        mac.0[5] = last;
        let station = |mac, address, port| Station { mac, ipv4: Some(address), ipv6: None, port };
        let ends = FrameEndpoints {
            source: station(mac, Ipv4Addr::new(a, b, c, last), SOURCE_PORT),
            target: station(self.mac, self.address, port),
        };
        let setup = FrameContext { ends, mtu_bytes: self.mtu_bytes, seed: role.seed };
        let size = role.settings.text(craft::SIZE.name).unwrap_or_default();
        let blueprint = craft::from_settings(&Settings::default().with(craft::SIZE.name, size), &setup)?;
        let shape = blueprint.template(0, 0);
        let mut frame = shape.bytes.clone();
        shape.write(&mut frame, &blueprint.frame_index(0, 0, [0; Mark::LENGTH]));
        Ok(frame)
    }
}

impl StackReceiveTest {
    fn prepare(role: &Role) -> Result<Self, Error> {
        let settings = &role.settings;
        let word = settings.text("end").unwrap_or_default();
        let end = DEPTHS.iter().find(|(known, _)| *known == word).map_or(StackDepth::Device, |(_, end)| *end);
        let n_rules = settings.count("rules").unwrap_or(0);
        if n_rules > 0 && matches!(end, StackDepth::Program | StackDepth::Device) {
            return Err(unsupported(
                format!("frames that end at the {word} meet no rule"),
                "--end filter, port or socket",
            ));
        }
        let place = input_device(role)?;
        let reader = match end {
            StackDepth::Socket => Some(SocketReader::open(place.address.into())?),
            _ => None,
        };
        let mut frame = place.frame_to(reader.as_ref().map_or(CLOSED_PORT, SocketReader::port), role)?;
        if end == StackDepth::Device {
            frame[12..14].copy_from_slice(&NO_PROTOCOL);
        }
        let rules = if n_rules > 0 || end == StackDepth::Filter {
            Some(FilterRules::install(n_rules, end == StackDepth::Filter)?)
        } else {
            None
        };
        let injection = FrameInjector::load(&frame, place.device, end == StackDepth::Program)?;
        let parts = std::iter::once(StackTask::Inject(injection)).chain(reader.map(StackTask::Read)).collect();
        Ok(Self { tasks: parts, rules, cores: role.cores.clone() })
    }
}

/// Marks the end of the injection, after a panic too: the reader waits for it.
struct EndMark<'a>(&'a AtomicBool);

impl Drop for EndMark<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Test for StackReceiveTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let (stack, reading, is_injected) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let pool =
            WorkerPool { states: self.tasks, counters: COUNTERS, cores: &self.cores, until: EndCondition::PhasesOver };
        let results = pool.run(context, &mut (), |worker, part| {
            let before = clock::thread_cpu();
            let (done, cpu) = match part {
                StackTask::Inject(injection) => {
                    let _end = EndMark(&is_injected);
                    (injection.run(&worker), &stack)
                }
                StackTask::Read(reader) => (reader.run(&worker, &is_injected), &reading),
            };
            // Each worker writes its own slot once, at its end.
            cpu.store((clock::thread_cpu() - before).0, Ordering::Relaxed);
            done.map_err(|cause| {
                Error::system("receive frames that were never sent", "CAP_BPF and CAP_NET_ADMIN", cause)
            })
        })?;
        let mut record = results.record(Side::Initiator);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        record.totals.extend([(STACK_CPU_NS.to_owned(), count(&stack)), (READER_CPU_NS.to_owned(), count(&reading))]);
        if let Some(rules) = self.rules {
            let n = rules
                .n_matched()
                .map_err(|cause| Error::System { what: "read the counters of rules".to_owned(), cause })?;
            record.totals.insert(FILTERED.to_owned(), n);
        }
        Ok(record)
    }
}

/// Opens a socket bound to an address of this host.
fn bind(address: IpAddr) -> Result<UdpSocket, Error> {
    let failed = |error| Error::System {
        what: format!("open a socket on {address}"),
        cause: fathom_sys::Error::new("bind", error),
    };
    UdpSocket::bind((address, 0)).map_err(failed)
}
