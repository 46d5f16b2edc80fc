//! pktgen's job done by fathom's own means, where the kernel has no pktgen: the same block, from the kind `frames`.
//!
//! What cannot be sent so is refused by name; nothing is left out of a packet without a word.

use std::{net::IpAddr, thread};

use fathom_engine::{Session, StopFlag, Test};
use fathom_model::{
    Endpoints, Phases, Record, Role, Settings, Side,
    names::count::{SEND_REFUSED, SENT},
    units::{Nanos, approximate},
};
use fathom_packet::{
    kinds::frames::SEND_TIME_NS,
    pktgen::{Addresses, Current, Finished, Outcome, Params, Setting, Status, Switch, Value, XmitMode},
    wire::MacAddress,
};
use fathom_sys::{clock, netlink::Netlink, signal};

use super::job::{Device, Job};
use crate::{
    exit::{Exit, Screen, engine_screen},
    wire_up,
};

const KIND: &str = "frames";
/// The port that frames of this kind go to, which is pktgen's own too.
const DISCARD: u64 = 9;
/// The first of the ports that they are from.
const SOURCE_PORT: u64 = 49_152;
/// The checksum of the wire, which pktgen does not count and the kind does.
const CHECKSUM: u64 = 4;
/// The smallest frame of Ethernet without it.
const SIZE_MIN: u64 = 60;
/// Nothing runs without end: a count of zero ends after an hour, if no signal comes before.
const LONGEST: Nanos = Nanos::from_secs(3600);
/// How long after the last device is ready all begin.
const HEAD_START: Nanos = Nanos::from_millis(50);
/// How soon a signal is passed on.
const TURN: Nanos = Nanos::from_millis(20);

/// What one device is to send, as far as this engine can.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Load {
    count: u64,
    size: u64,
    delay: Nanos,
    destination: std::net::Ipv4Addr,
    mac: MacAddress,
    mode: XmitMode,
    remarks: Vec<String>,
}

impl Load {
    fn of(device: &Device) -> Result<Self, Screen> {
        let unspecified = std::net::Ipv4Addr::UNSPECIFIED;
        let mut load = Self {
            count: 1_000,
            size: SIZE_MIN,
            delay: Nanos::ZERO,
            destination: unspecified,
            mac: MacAddress([0; 6]),
            mode: XmitMode::StartXmit,
            remarks: Vec::new(),
        };
        device.settings.iter().try_for_each(|setting| load.take(setting))?;
        Ok(load)
    }

    fn take(&mut self, setting: &Setting) -> Result<(), Screen> {
        let lacking = || {
            Screen::new(Exit::Preflight, format!("`{setting}` needs the kernel's pktgen, which is not loaded"))
                .line("fix", "sudo modprobe pktgen        (a kernel with CONFIG_NET_PKTGEN)")
        };
        let second = 1_000_000_000;
        match (setting.name(), setting.value()) {
            ("count", Value::Number(count)) => self.count = *count,
            ("pkt_size" | "min_pkt_size" | "max_pkt_size", Value::Number(size)) if *size >= SIZE_MIN => {
                self.size = *size;
            }
            ("delay", Value::Number(delay)) => self.delay = Nanos(*delay),
            ("ratep", Value::Number(rate @ 1..)) => self.delay = Nanos(second / rate),
            ("rate", Value::Number(megabits @ 1..)) => self.delay = Nanos(self.size * 8 * 1_000 / megabits),
            ("dst" | "dst_min", Value::Address(IpAddr::V4(address))) => self.destination = *address,
            ("dst_mac", Value::Mac(mac)) => self.mac = *mac,
            ("xmit_mode", Value::Mode(mode @ (XmitMode::StartXmit | XmitMode::QueueXmit))) => self.mode = *mode,
            ("dst_max", Value::Address(IpAddr::V4(address))) if *address == self.destination => {}
            ("udp_dst_min" | "udp_dst_max", Value::Number(DISCARD))
            | ("frags" | "flows" | "flowlen" | "src_mac_count" | "dst_mac_count" | "debug", Value::Number(0))
            | ("clone_skb" | "burst", Value::Number(0 | 1))
            | ("clear_counters", _)
            | ("flag", Value::Flag(_, Switch::Off)) => {}
            ("clone_skb" | "burst", _) | ("flag", Value::Flag("QUEUE_MAP_CPU" | "NO_TIMESTAMP" | "UDPCSUM", _)) => {
                self.remarks.push(format!("`{setting}` makes no difference to fathom's own engine"));
            }
            _ => return Err(lacking()),
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default().with("size", (self.size + CHECKSUM).to_string());
        if self.count > 0 {
            settings.set("count", self.count.to_string());
        }
        if self.delay > Nanos::ZERO {
            settings.set("rate", format!("{}pps", 1e9 / approximate(self.delay.0)));
        }
        if self.mode == XmitMode::QueueXmit {
            settings.set("qdisc", "true");
        }
        settings
    }
}

/// A device that is ready to send.
struct Ready {
    name: String,
    source: (MacAddress, IpAddr),
    load: Load,
    test: Box<dyn Test>,
}

impl Ready {
    fn prepare(device: &Device) -> anyhow::Result<Self> {
        let load = Load::of(device)?;
        let mut netlink = Netlink::open()?;
        let interface = device.interface();
        let missing = |what: String| Screen::new(Exit::Preflight, what);
        let link = netlink.link(interface).map_err(|_| missing(format!("there is no device {interface}")))?;
        let addresses = netlink.addresses()?;
        let own =
            addresses.iter().find(|(index, address)| *index == link.index && address.is_ipv4()).map(|(_, own)| *own);
        let own =
            own.ok_or_else(|| missing(format!("{interface} has no address of IPv4")).line("fix", "ip address add"))?;
        let kind = wire_up::kind(KIND)?;
        // The other end is not ours: what it would have told, the job says.
        let told = [
            ("mac", load.mac.to_string()),
            ("address", load.destination.to_string()),
            ("port", DISCARD.to_string()),
            ("trial", (clock::now().0 & 0xffff_ffff).to_string()),
        ];
        let role = Role {
            test: "pktgen".to_owned(),
            kind: KIND.to_owned(),
            side: Side::Initiator,
            settings: load.settings().complete(kind.options())?,
            phases: Phases {
                warmup_max_ns: Nanos::ZERO,
                is_warmup_whole: false,
                measure_ns: LONGEST,
                interval_ns: Nanos::from_millis(100),
            },
            address: Some(own),
            interface: Some(interface.to_owned()),
            peer: told.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Endpoints>(),
            cores: Vec::new(),
            seed: clock::wall().0,
        };
        let test = kind.prepare(&role).map_err(|error| engine_screen(&error))?;
        let mac = MacAddress(link.mac.unwrap_or_default());
        Ok(Self { name: device.name.clone(), source: (mac, own), load, test })
    }
}

/// What came of a job: a block for each device, and what is to be said beside them.
pub(super) struct Sent {
    pub(super) statuses: Vec<Status>,
    pub(super) engine: String,
    pub(super) remarks: Vec<String>,
    pub(super) is_interrupted: bool,
}

/// Sends by fathom's own means.
pub(super) fn send(job: &Job) -> anyhow::Result<Sent> {
    let signals = signal::watch()?;
    let ready: Vec<Ready> = job.devices.iter().map(Ready::prepare).collect::<anyhow::Result<_>>()?;
    let remarks = ready.iter().flat_map(|ready| ready.load.remarks.clone()).collect();
    let stop = StopFlag::default();
    let start = clock::now() + HEAD_START;
    let outcomes = thread::scope(|scope| {
        let run = |ready: Ready| {
            let phases = Phases {
                warmup_max_ns: Nanos::ZERO,
                is_warmup_whole: false,
                measure_ns: LONGEST,
                interval_ns: Nanos::from_millis(100),
            };
            let session = Session { stop: stop.clone(), ..Session::new(start, phases) };
            scope.spawn(move || {
                let Ready { name, source, load, test } = ready;
                test.run(&session).map(|record| (status(&name, source, &load, &record), record))
            })
        };
        let running: Vec<_> = ready.into_iter().map(run).collect();
        while !running.iter().all(thread::ScopedJoinHandle::is_finished) {
            if let Ok(Some(_)) = signals.wait_until(clock::now() + TURN) {
                stop.abort();
                // From here on there is nothing to wait for but the end.
                break;
            }
        }
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect::<Vec<Result<(Status, Record), _>>>()
    });
    let sent = outcomes.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| engine_screen(&error))?;
    let notes = sent.iter().flat_map(|(_, record)| &record.notes);
    let engine =
        notes.clone().find(|note| note.id == "backend").map_or_else(|| KIND.to_owned(), |note| note.text.clone());
    let statuses = sent.into_iter().map(|(status, _)| status).collect();
    Ok(Sent { statuses, engine, remarks, is_interrupted: signals.received().is_some() })
}

/// A record in pktgen's words.
fn status(name: &str, (mac, own): (MacAddress, IpAddr), load: &Load, record: &Record) -> Status {
    let total = |counter: &str| record.totals.get(counter).copied().unwrap_or(0);
    let (sent, errors) = (total(SENT), total(SEND_REFUSED));
    let took = Nanos(total(SEND_TIME_NS));
    // What was not spent on a processor was spent waiting.
    let idle = took.since(record.cpu_ns);
    let started = record.start_ns;
    let params = Params {
        count: load.count,
        min_pkt_size: load.size,
        max_pkt_size: load.size,
        imix_weights: Vec::new(),
        frags: 0,
        delay: load.delay,
        clone_skb: 0,
        ifname: name.to_owned(),
        flows: 0,
        flowlen: 0,
        queue_map: (0, 0),
        skb_priority: 0,
        addresses: Addresses::V4 { dst: (Some(load.destination), Some(load.destination)), src: (None, None) },
        src_mac: mac,
        dst_mac: load.mac,
        udp_src: (SOURCE_PORT, SOURCE_PORT),
        udp_dst: (DISCARD, DISCARD),
        src_mac_count: 0,
        dst_mac_count: 0,
        mpls: Vec::new(),
        vlan: None,
        svlan: None,
        tos: 0,
        traffic_class: 0,
        burst: 1,
        node: None,
        xmit_mode: load.mode,
        flags: vec!["UDPCSUM".to_owned()],
    };
    let current = Current {
        sent,
        errors,
        imix_size_counts: Vec::new(),
        started,
        stopped: started + took,
        idle,
        seq_num: sent + 1,
        mac_offsets: (0, 0),
        addresses: (own.to_string(), load.destination.to_string()),
        ports: (DISCARD, SOURCE_PORT),
        queue_map: 0,
        flows: 0,
    };
    let outcome = Outcome::Finished(Finished::of(sent, load.size, (took, idle), errors));
    Status { params, current, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(lines: &[&str]) -> Result<Load, Screen> {
        let settings = lines.iter().map(|line| line.parse().unwrap()).collect();
        Load::of(&Device { name: "e@0".to_owned(), thread: 0, settings })
    }

    #[test]
    fn a_job_becomes_options_of_the_kind() {
        let lines = [
            "count 5",
            "pkt_size 64",
            "delay 10000",
            "dst_min 10.0.0.2",
            "dst_max 10.0.0.2",
            "burst 1",
            "xmit_mode queue_xmit",
        ];
        let settings = load(&lines).unwrap().settings();
        let expected =
            Settings::default().with("size", "68").with("count", "5").with("rate", "100000pps").with("qdisc", "true");
        assert_eq!(settings, expected);
        assert_eq!(load(&["pkt_size 60", "rate 480M"]).unwrap().delay, Nanos::from_micros(1));
        assert_eq!(load(&["ratep 3000000"]).unwrap().delay, Nanos(333));
        assert_eq!(load(&["count 0"]).unwrap().settings().text("count"), None);
    }

    #[test]
    fn what_only_the_kernels_pktgen_can_do_is_refused_by_name() {
        for line in [
            "mpls 0001000a",
            "vlan_id 5",
            "dst6 fd00::1",
            "imix_weights 64,7",
            "flag UDPSRC_RND",
            "pkt_size 42",
            "spi 1",
        ] {
            let error = load(&[line]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{line}` needs the kernel's pktgen")), "{error}");
        }
        assert_eq!(load(&["burst 8"]).unwrap().remarks, ["`burst 8` makes no difference to fathom's own engine"]);
    }
}
