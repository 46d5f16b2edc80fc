//! Frames built by the kernel's pktgen: UDP with pktgen's own header, from one kernel thread per worker.
//!
//! All its threads start and stop together. The first worker controls them all, and the others only poll theirs.

mod packets;

use fathom_engine::{Error, WorkerHandle};
use fathom_model::units::Nanos;
use fathom_sys::{clock, packet::packet_socket::Queueing};

use super::{Backend, Generator, OutputDevice, Timestamping, WorkerLoad, counter, departures::TICK_BITS, unsupported};
use fathom_pktgen as pktgen;
use fathom_pktgen::{CommandResult, FlagState, PktgenDir, PktgenSetting, RunStatus, Value, XmitMode};
use packets::PktgenPackets;

/// `/proc/net/pktgen`.
#[derive(Debug)]
pub(super) struct Pktgen;

/// The pktgen device of one worker.
#[derive(Debug)]
struct PktgenGenerator {
    root: PktgenDir,
    name: String,
    target: SendTarget,
    /// The session that controls all devices; only the first worker has it.
    session: Option<pktgen::PktgenSession>,
    remark: String,
}

/// The request to a device, used to count the packets that were not sent.
#[derive(Debug, Clone, Copy)]
struct SendTarget {
    /// The gap between packets; `None` for flat out.
    delay: Option<Nanos>,
    count: Option<u64>,
}

/// The time between two polls of a device that another worker starts: an interval of 100 ms is then exact to 2 %.
const POLL_INTERVAL: Nanos = Nanos::from_millis(2);
/// How long a device may take to finish after the trial. The first worker gives up at the same time.
const ENDS_WITHIN: Nanos = Nanos::from_secs(6);

const UNCOUNTED: &str = "the receiver does not count its packets: it distinguishes threads by their source ports, and \
                         each thread needs the same number";
const REPEATS: &str = "in a burst it sends the same packet again and again, and the receiver counts duplicates";
const EQUAL: &str = "it sends at equal distances only";

impl Backend for Pktgen {
    fn option_value(&self) -> &'static str {
        "pktgen"
    }

    fn description(&self) -> &'static str {
        "the kernel's pktgen"
    }

    fn is_absent(&self) -> bool {
        matches!(PktgenDir::default().version(), Err(pktgen::Error::Absent(_)))
    }

    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn super::Generator>, Error> {
        let refused = |error: pktgen::Error| refusal(port, error);
        let root = PktgenDir::default().pin_namespace().map_err(refused)?;
        let packets = PktgenPackets::of(&load.frames)?;
        let ports = load.pktgen.ok_or_else(|| unsupported(UNCOUNTED.to_owned()))?;
        let mut settings = packets.settings(&load.frames, load.share, ports)?;
        let target = SendTarget { delay: delay(&load)?, count: load.count };
        let name = |idx: usize| format!("{}@fathom{idx}", port.name);
        let mut all = None;
        if load.share.idx == 0 {
            let generator = all.insert(pktgen::PktgenSession::claim(&PktgenDir::default()).map_err(refused)?);
            (0..load.share.of).try_for_each(|idx| generator.add(idx, &name(idx))).map_err(refused)?;
        }
        let name = name(load.share.idx);
        settings.extend(schedule_settings(port, &load, target));
        settings.iter().try_for_each(|setting| root.set(&name, setting)).map_err(refused)?;
        match root.changes(&name, &settings).map_err(refused)?.first() {
            Some(change) => Err(Error::Unsupported { what: change.to_string(), hint: Some(change.fix().to_owned()) }),
            None => Ok(Box::new(PktgenGenerator { root, name, target, session: all, remark: packets.remark() })),
        }
    }
}

fn refusal(port: &OutputDevice, error: pktgen::Error) -> Error {
    match error {
        pktgen::Error::File { what, cause } => {
            let call = format!("open(/proc/net/pktgen) for {}", port.name);
            Error::system(what, "root", fathom_sys::Error::new(call, cause))
        }
        error => Error::Unsupported { what: error.to_string(), hint: error.hint() },
    }
}

/// The gap between packets. pktgen supports constant gaps in whole nanoseconds only.
fn delay(load: &WorkerLoad) -> Result<Option<Nanos>, Error> {
    let Some(departures) = &load.departures else { return Ok(None) };
    let rhythm = &departures.params;
    if rhythm.burst > 1 || rhythm.random.is_some() {
        return Err(unsupported(if rhythm.burst > 1 { REPEATS } else { EQUAL }.to_owned()));
    }
    if rhythm.rate_change.is_some() {
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

/// The settings of one worker's thread, apart from those of its packets.
fn schedule_settings(port: &OutputDevice, load: &WorkerLoad, target: SendTarget) -> Vec<PktgenSetting> {
    let mut settings = vec![
        PktgenSetting::new("count", target.count.unwrap_or(0)),
        PktgenSetting::new("delay", target.delay.unwrap_or(Nanos::ZERO)),
    ];
    if load.share.of > 1 {
        settings.push(PktgenSetting::new("flag", Value::Flag("QUEUE_MAP_CPU", FlagState::On)));
    }
    if load.timestamping == Timestamping::None {
        settings.push(PktgenSetting::new("flag", Value::Flag("NO_TIMESTAMP", FlagState::On)));
    }
    if port.queueing == Queueing::Discipline {
        settings.push(PktgenSetting::new("xmit_mode", XmitMode::QueueXmit));
    }
    settings
}

impl SendTarget {
    /// The number of packets that were due when pktgen last read its clock.
    fn due(self, current: &RunStatus) -> Option<u64> {
        let delay = self.delay?;
        let elapsed = current.stopped.since(current.started);
        let by_time = if current.started > Nanos::ZERO { elapsed.0 / delay.0.max(1) + 1 } else { 0 };
        Some(self.count.map_or(by_time, |count| count.min(by_time)))
    }

    /// Reports the progress of pktgen.
    fn count_progress(self, worker: &WorkerHandle<'_>, current: &RunStatus) {
        worker.raise(counter::SENT, current.sent);
        worker.raise(counter::REFUSED, current.errors);
        let tried = current.sent + current.errors;
        if let (Some(due), Some(delay)) = (self.due(current), self.delay) {
            worker.raise(counter::INTENDED, tried);
            worker.raise(counter::LAG, (delay * due.saturating_sub(tried + 1)).0);
        }
    }

    /// Reports the packets that were due by the end and not sent.
    fn count_unsent(self, worker: &WorkerHandle<'_>, current: &RunStatus) {
        self.count_progress(worker, current);
        let tried = current.sent + current.errors;
        if let Some(due) = self.due(current) {
            worker.raise(counter::UNSENT, due.saturating_sub(tried));
            worker.raise(counter::INTENDED, due.max(tried));
        }
    }
}

impl Generator for PktgenGenerator {
    fn frame_difference(&self) -> Option<String> {
        Some(self.remark.clone())
    }

    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        let outcome = match &self.session {
            Some(all) => all.run(|| {
                // If the status cannot be read now, it is read at the end, or the error is reported then.
                if let Ok(status) = self.root.status(&self.name) {
                    self.target.count_progress(worker, &status.progress);
                }
                worker.is_over()
            }),
            None => self.watch(worker),
        };
        let ended = outcome.and_then(|()| self.root.status(&self.name));
        self.target.count_unsent(worker, &ended.map_err(as_sys_error)?.progress);
        Ok(())
    }
}

impl PktgenGenerator {
    /// Waits until the run that the first worker started has ended for this device too.
    fn watch(&self, worker: &WorkerHandle<'_>) -> Result<(), pktgen::Error> {
        let mut over_since = None;
        loop {
            let status = self.root.status(&self.name)?;
            self.target.count_progress(worker, &status.progress);
            if matches!(status.last_result, CommandResult::Finished(_)) {
                return Ok(());
            }
            let now = clock::now();
            if worker.is_over() && now - *over_since.get_or_insert(now) > ENDS_WITHIN {
                return Err(pktgen::Error::Runaway(ENDS_WITHIN));
            }
            clock::sleep_until(now + POLL_INTERVAL);
        }
    }
}

fn as_sys_error(error: pktgen::Error) -> fathom_sys::Error {
    fathom_sys::Error::new("pktgen", std::io::Error::other(error))
}
