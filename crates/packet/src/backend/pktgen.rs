//! Frames made by the kernel's pktgen: UDP over IPv4 with a header of its own, from one thread of the kernel for each worker.
//!
//! All its threads start and stop together, so the first worker holds them all, and the others only watch theirs.

use fathom_engine::{Error, Worker};
use fathom_model::units::Nanos;
use fathom_sys::{clock, packet_socket::Queueing};

use super::{Backend, Generator, Load, Port, Stamping, counter, departures::TICK_BITS, unsupported};
use crate::{
    craft::{Blueprint, Per, Shape},
    pktgen::{self, Current, Outcome, Root, SOURCE_PORT, Setting, Switch, Value, XmitMode},
    wire::{Ethernet, Ipv4, MarkPlace, Udp},
};

/// `/proc/net/pktgen`.
#[derive(Debug)]
pub(super) struct Pktgen;

/// One worker's device of pktgen.
#[derive(Debug)]
struct Device {
    root: Root,
    name: String,
    course: Course,
    /// All devices, in the hands of the first worker.
    all: Option<pktgen::Generator>,
}

/// What a device was asked to send, for the account of what it did not.
#[derive(Debug, Clone, Copy)]
struct Course {
    /// From one packet to the next; none flat out.
    delay: Option<Nanos>,
    count: Option<u64>,
}

/// How often a device that somebody else starts is looked at: an interval of 100 ms is then exact to 2 %.
const LOOK_UP: Nanos = Nanos::from_millis(2);
/// How long a device may take to end after the trial; the first worker gives up at the same time.
const ENDS_WITHIN: Nanos = Nanos::from_secs(6);

impl Backend for Pktgen {
    fn word(&self) -> &'static str {
        "pktgen"
    }

    fn about(&self) -> &'static str {
        "the kernel's pktgen"
    }

    fn is_absent(&self) -> bool {
        matches!(Root::default().version(), Err(pktgen::Error::Absent(_)))
    }

    fn open(&self, port: &Port, load: Load) -> Result<Box<dyn super::Generator>, Error> {
        let refused = |error: pktgen::Error| refusal(port, error);
        let root = Root::default().pinned().map_err(refused)?;
        let first_port =
            load.pktgen.ok_or_else(|| unsupported("the receiver does not count its packets".to_owned()))?;
        let frame = Frame::of(&load.blueprint)?;
        if load.blueprint.n_flows as usize != load.share.of {
            let what = "each of its threads numbers its packets through all flows: as many workers as flows are needed";
            return Err(unsupported(what.to_owned()));
        }
        let course = Course { delay: delay(&load)?, count: load.count };
        let name = |idx: usize| format!("{}@fathom{idx}", port.name);
        let mut all = None;
        if load.share.idx == 0 {
            let generator = all.insert(pktgen::Generator::claim(&Root::default()).map_err(refused)?);
            (0..load.share.of).try_for_each(|idx| generator.add(idx, &name(idx))).map_err(refused)?;
        }
        let name = name(load.share.idx);
        let source = u64::from(first_port) + load.share.idx as u64;
        let settings = settings(&frame, (port, &load), course, source);
        settings.iter().try_for_each(|setting| root.set(&name, setting)).map_err(refused)?;
        match root.changes(&name, &settings).map_err(refused)?.first() {
            Some(change) => Err(Error::Unsupported { what: change.to_string(), hint: Some(change.fix().to_owned()) }),
            None => Ok(Box::new(Device { root, name, course, all })),
        }
    }
}

fn refusal(port: &Port, error: pktgen::Error) -> Error {
    match error {
        pktgen::Error::File { what, cause } => {
            let call = format!("open(/proc/net/pktgen) for {}", port.name);
            Error::system(what, "root", fathom_sys::Error::new(call, cause))
        }
        error => Error::Unsupported { what: error.to_string(), hint: error.hint() },
    }
}

/// What pktgen is told of the frames.
#[derive(Debug)]
struct Frame {
    length: usize,
    ethernet: Ethernet,
    ipv4: Ipv4,
    udp: Udp,
}

impl Frame {
    /// Datagrams over IPv4 of one size and without anything that changes but their source port.
    fn of(blueprint: &Blueprint) -> Result<Self, Error> {
        let other = || unsupported("it makes plain UDP over IPv4 only, of one size".to_owned());
        let [shape] = blueprint.shapes.as_slice() else { return Err(other()) };
        let is_source_port =
            |edit: &crate::craft::Edit| edit.per == Per::Flow && (edit.at, edit.width) == (SOURCE_PORT, 2);
        if shape.mark_at != Some(MarkPlace::START) || !shape.edits.iter().all(is_source_port) {
            return Err(other());
        }
        Self::parse(shape).ok_or_else(other)
    }

    fn parse(shape: &Shape) -> Option<Self> {
        let (ethernet, packet) = Ethernet::parse(&shape.bytes)?;
        let (ipv4, datagram) = Ipv4::parse(packet)?;
        let (udp, _) = Udp::parse(datagram)?;
        let length = usize::from(ipv4.total_length) + Ethernet::LENGTH;
        (length == shape.bytes.len()).then_some(Self { length, ethernet, ipv4, udp })
    }
}

/// The distance between packets, which pktgen keeps in whole nanoseconds, and without chance.
fn delay(load: &Load) -> Result<Option<Nanos>, Error> {
    let Some(departures) = &load.departures else { return Ok(None) };
    let rhythm = &departures.rhythm;
    if rhythm.burst > 1 || rhythm.random.is_some() {
        return Err(unsupported("it sends at equal distances only".to_owned()));
    }
    if rhythm.turn.is_some() {
        return Err(unsupported("it keeps one rate".to_owned()));
    }
    let delay = Nanos(rhythm.gap >> TICK_BITS);
    if delay.0 << TICK_BITS != rhythm.gap {
        return Err(unsupported(format!(
            "it waits whole nanoseconds, and the next packet is due after {delay} and a part"
        )));
    }
    Ok(Some(delay))
}

fn settings(frame: &Frame, (port, load): (&Port, &Load), course: Course, source: u64) -> Vec<Setting> {
    let (from, to) = (Value::Address(frame.ipv4.source.into()), Value::Address(frame.ipv4.destination.into()));
    let mut settings = vec![
        Setting::new("pkt_size", frame.length as u64),
        Setting::new("count", course.count.unwrap_or(0)),
        Setting::new("delay", course.delay.unwrap_or(Nanos::ZERO)),
        Setting::new("src_min", from.clone()),
        Setting::new("src_max", from),
        Setting::new("dst_min", to.clone()),
        Setting::new("dst_max", to),
        Setting::new("src_mac", frame.ethernet.source),
        Setting::new("dst_mac", frame.ethernet.destination),
        Setting::new("udp_src_min", source),
        Setting::new("udp_src_max", source),
        Setting::new("udp_dst_min", u64::from(frame.udp.destination)),
        Setting::new("udp_dst_max", u64::from(frame.udp.destination)),
    ];
    if load.share.of > 1 {
        settings.push(Setting::new("flag", Value::Flag("QUEUE_MAP_CPU", Switch::On)));
    }
    if load.stamping == Stamping::None {
        settings.push(Setting::new("flag", Value::Flag("NO_TIMESTAMP", Switch::On)));
    }
    if port.queueing == Queueing::Discipline {
        settings.push(Setting::new("xmit_mode", XmitMode::QueueXmit));
    }
    settings
}

impl Course {
    /// How many packets were due when pktgen last looked at its clock.
    fn due(self, current: &Current) -> Option<u64> {
        let delay = self.delay?;
        let elapsed = current.stopped.since(current.started);
        let by_time = if current.started > Nanos::ZERO { elapsed.0 / delay.0.max(1) + 1 } else { 0 };
        Some(self.count.map_or(by_time, |count| count.min(by_time)))
    }

    /// Tells what pktgen has done so far.
    fn tell(self, worker: &Worker<'_>, current: &Current) {
        worker.raise(counter::SENT, current.sent);
        worker.raise(counter::REFUSED, current.errors);
        let tried = current.sent + current.errors;
        if let (Some(due), Some(delay)) = (self.due(current), self.delay) {
            worker.raise(counter::INTENDED, tried);
            worker.raise(counter::LAG, (delay * due.saturating_sub(tried + 1)).0);
        }
    }

    /// Tells what was due until the end, and was not sent.
    fn end(self, worker: &Worker<'_>, current: &Current) {
        self.tell(worker, current);
        let tried = current.sent + current.errors;
        if let Some(due) = self.due(current) {
            worker.raise(counter::UNSENT, due.saturating_sub(tried));
            worker.raise(counter::INTENDED, due.max(tried));
        }
    }
}

impl Generator for Device {
    fn send(&mut self, worker: &Worker<'_>) -> fathom_sys::Result<()> {
        let outcome = match &self.all {
            Some(all) => all.run(|| {
                // A status that cannot be read now is read at the end, or is the error then.
                if let Ok(status) = self.root.status(&self.name) {
                    self.course.tell(worker, &status.current);
                }
                worker.is_over()
            }),
            None => self.watch(worker),
        };
        let ended = outcome.and_then(|()| self.root.status(&self.name));
        self.course.end(worker, &ended.map_err(failure)?.current);
        Ok(())
    }
}

impl Device {
    /// Waits until the run that the first worker started has ended for this device too.
    fn watch(&self, worker: &Worker<'_>) -> Result<(), pktgen::Error> {
        let mut over_since = None;
        loop {
            let status = self.root.status(&self.name)?;
            self.course.tell(worker, &status.current);
            if matches!(status.outcome, Outcome::Finished(_)) {
                return Ok(());
            }
            let now = clock::now();
            if worker.is_over() && now - *over_since.get_or_insert(now) > ENDS_WITHIN {
                return Err(pktgen::Error::Runaway(ENDS_WITHIN));
            }
            clock::sleep_until(now + LOOK_UP);
        }
    }
}

fn failure(error: pktgen::Error) -> fathom_sys::Error {
    fathom_sys::Error::new("pktgen", std::io::Error::other(error))
}
