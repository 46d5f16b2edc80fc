//! The responder: counts the frames that arrive, and those that its device and host drop.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_engine::{EndCondition, Error, Stop, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{
    Endpoints, Note, Record, Role, Settings, Side,
    names::{
        count::{DUPLICATES, FILL_EMPTY, PASSED_ON, RECEIVED, REORDERED, RING_FULL, SOCKET_DROPPED},
        distribution::LATENCY,
        host::{DEV_RX_DROPPED, DEV_RX_FRAMES},
    },
    units::Nanos,
};
use fathom_sys::{clock, policy::Policy, socket::timestamping::KernelClockOffset};

use super::{
    PORT, STEP_AT,
    clock_id::clock_name,
    counter::FrameCounter,
    device::{QuietWait, TestDevice, note_unavailable},
    endpoint, frame_options,
    learning::{LearningFrames, LearningOptions},
    n_workers,
};
use crate::{
    craft::{FrameOutline, SourcePorts},
    xdp::{ExpectedFrames, FrameTimes, RateStepTimes, RateSteps, UnrelatedFrames},
};
use fathom_pktgen::{DevicePorts, PktgenDir, PktgenOrigin};
use fathom_wire::Mark;

// Dynamic ports (RFC 6335 section 6). Each trial uses other ones, with room for all workers above the first.
const PKTGEN_PORT: u16 = 49_152;
const PKTGEN_PORTS: u32 = 16_384 - 64;

/// A responder, ready to count.
#[derive(Debug)]
pub(super) struct FramesReceiver {
    device: TestDevice,
    learning_frames: Option<LearningFrames>,
    /// The address at which its controller reaches it. Behind NAT the device does not have this address.
    advertised_address: Ipv4Addr,
    /// Its IPv6 address, if frames go to it.
    address_v6: Option<Ipv6Addr>,
    counter: FrameCounter,
    /// Whether frames carry their number and departure time.
    is_marked: bool,
    rate_steps: RateSteps,
    trial: u32,
    pktgen: Option<PktgenOrigin>,
    cores: Vec<usize>,
    notes: Vec<Note>,
}

const COUNTERS: &[&str] = &[RECEIVED, DUPLICATES, REORDERED, SOCKET_DROPPED, RING_FULL, FILL_EMPTY];

// Distributions kept by the sink; latency and variation by RFC 8219 section 7 and RFC 5481.
/// Absolute differences between the latencies of consecutive frames of a flow.
pub const VARIATION: &str = "ipdv_ns";
pub(super) const GAP: &str = "arrival_gap_ns";
/// Packet delay variation (RFC 5481 section 4.2): the 99.9th percentile of the latency minus its minimum.
pub(super) const PDV_NS: &str = "pdv_ns";

/// The time from the first frame after a rate change to the last frame with a gap before it, in nanoseconds.
pub const RECOVERY_NS: &str = "recovery_ns";

impl FramesReceiver {
    pub(super) fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let mut device = TestDevice::find(role)?;
        let outline = frame_options::outline(&role.settings, &device)?;
        let (advertised_address, address_v6) = destination(role, &device, &outline)?;
        // Trials of one plan may share a seed. The clock separates late frames of an earlier trial from those of this one.
        let mixed = role.seed ^ clock::now().0;
        let trial = u32::try_from((mixed ^ mixed >> 32) & u64::from(u32::MAX)).expect("32 bits are left");
        let mut notes = Vec::new();
        let places = outline.mark_places();
        if places.is_empty() {
            let text =
                "these frames carry no number, so frames of others are counted too, and order and latency are unknown";
            notes.push(Note::new("frames-unmarked", text));
        }
        let pktgen = pktgen_origin(&role.settings, &outline, trial);
        let is_stepped = role.settings.span(STEP_AT).is_some();
        let stepping = if is_stepped { RateSteps::Once } else { RateSteps::None };
        let strays = if places.is_empty() { UnrelatedFrames::of_namespace() } else { UnrelatedFrames::default() };
        notes.extend(strays.note());
        let expected = ExpectedFrames {
            tag: Mark::tag_of(trial),
            places,
            n_flows: outline.n_flows,
            pktgen,
            rate_steps: stepping,
            unrelated: strays,
        };
        let counter = FrameCounter::open(&device, &role.settings, &expected, &mut notes)?;
        device.wait_for_carrier()?;
        let is_marked = outline.mark_at.is_some();
        // The counter is attached by now, which may have taken the link down for a moment.
        let learned = match LearningOptions::of(&role.settings)? {
            learning if policy.is_for_others() => {
                notes.extend(learning.withheld_note());
                None
            }
            learning => learning.send_announcement(&device, &policy.permit_frames([])?)?,
        };
        let cores = role.cores.clone();
        Ok(Self {
            device,
            learning_frames: learned,
            advertised_address,
            address_v6,
            counter,
            is_marked,
            rate_steps: stepping,
            trial,
            pktgen,
            cores,
            notes,
        })
    }
}

/// Returns the addresses that frames go to: the one at which this host is reached, and those of its device.
fn destination(
    role: &Role,
    device: &TestDevice,
    outline: &FrameOutline,
) -> Result<(Ipv4Addr, Option<Ipv6Addr>), Error> {
    let needed = device.address_v6.filter(|_| outline.needs_ipv6);
    match role.address {
        Some(IpAddr::V4(address)) => Ok((address, needed)),
        Some(IpAddr::V6(address)) if device.address_v6 == Some(address) => Ok((device.address, needed)),
        Some(IpAddr::V6(address)) if outline.needs_only_ipv4 => Err(Error::Unsupported {
            what: format!("{address} is the address behind the device, and these frames carry IPv4"),
            hint: Some("--transport udp6".to_owned()),
        }),
        Some(IpAddr::V6(address)) => Ok((device.address, Some(address))),
        None => Ok((device.address, needed)),
    }
}

/// Returns how to recognize packets of the kernel's pktgen, if the initiator may send any.
///
/// Its threads share the source ports of the options, or have one port each that is specific to this trial.
fn pktgen_origin(settings: &Settings, outline: &FrameOutline, trial: u32) -> Option<PktgenOrigin> {
    let is_asked = match settings.text("backend").as_deref() {
        Some("pktgen") => true,
        // If this host has no pktgen, the other one rarely has it. That is not worth a check of each frame.
        Some("auto") => PktgenDir::default().version().is_ok(),
        _ => false,
    };
    let n_devices = n_workers(settings);
    let ports = match outline.source_ports {
        SourcePorts::Own => {
            let first = PKTGEN_PORT + u16::try_from(trial % PKTGEN_PORTS).expect("a port has 16 bits");
            DevicePorts { first, each: 1 }
        }
        SourcePorts::Given { first, n } if n.is_multiple_of(n_devices) => DevicePorts { first, each: n / n_devices },
        SourcePorts::Given { .. } => return None,
    };
    let at = outline.mark_at.filter(|_| is_asked)?;
    Some(PktgenOrigin { ports, n_devices, at, ahead: KernelClockOffset::now().ahead() })
}

impl Test for FramesReceiver {
    fn endpoints(&self) -> Endpoints {
        let text = |key: &str, value: String| (key.to_owned(), value);
        let mut told = Endpoints::from([
            text(endpoint::MAC, self.device.mac.to_string()),
            text(endpoint::ADDRESS, self.advertised_address.to_string()),
            text(endpoint::PORT, PORT.to_string()),
            text(endpoint::TRIAL, self.trial.to_string()),
            text(endpoint::COUNTER, self.counter.describe()),
            text(endpoint::CLOCK, clock_name().unwrap_or_default()),
        ]);
        told.extend(self.address_v6.map(|address| text(endpoint::ADDRESS_V6, address.to_string())));
        if let Some(PktgenOrigin { ports, .. }) = self.pktgen {
            let numbers = [(endpoint::PKTGEN, ports.first.into()), (endpoint::PKTGEN_EACH, ports.each)];
            told.extend(numbers.map(|(key, number)| text(key, number.to_string())));
        }
        told
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let before = self.device.initial_counts()?;
        let pool = WorkerPool {
            states: vec![&mut self.counter],
            counters: COUNTERS,
            cores: &self.cores,
            until: EndCondition::PeerFinished,
        };
        let results = pool.run(context, &mut (), |worker, counter| {
            let what = || "count the frames that arrived".to_owned();
            count(&worker, counter).map_err(|cause| Error::System { what: what(), cause })
        })?;
        let mut record = results.record(Side::Responder);
        let passed_on = if self.counter.passes_frames() { record.totals[RECEIVED] } else { 0 };
        record.totals.insert(PASSED_ON.to_owned(), passed_on);
        let loss = self.device.record_growth(&mut record, &before);
        note_unavailable(&mut record, loss.as_slice());
        record.notes.extend(self.notes);
        if let Some(learned) = self.learning_frames {
            learned.add_to(&mut record);
        }
        let times = self.counter.times();
        let times = times.map_err(|cause| Error::System { what: "read the times of frames".to_owned(), cause })?;
        record_times(&mut record, times, self.is_marked);
        if let Some(text) = self.counter.timestamp_note().filter(|_| record.distributions.contains_key(GAP)) {
            record.notes.push(Note::new("arrival-times", text));
        }
        if self.rate_steps == RateSteps::Once {
            let step = self.counter.rate_step();
            let step = step.map_err(|cause| Error::System { what: "read the times of losses".to_owned(), cause })?;
            record_recovery(&mut record, step);
        }
        if record.totals[RECEIVED] == 0 && context.stop.state() == Stop::Finish {
            let total = |name: &str| record.totals.get(name).copied().unwrap_or(0);
            let (name, frames, dropped) = (self.device.name(), total(DEV_RX_FRAMES), total(DEV_RX_DROPPED));
            let text = format!(
                "none of the frames arrived at {name}, which received {frames} frames of any kind and dropped {dropped} \
                 meanwhile"
            );
            record.notes.push(Note::new("nothing-arrived", text));
        }
        Ok(record)
    }
}

/// Adds the times of the counter to the record.
fn record_times(record: &mut Record, times: FrameTimes, is_marked: bool) {
    if is_marked && record.totals[RECEIVED] > 0 && times.latency.count() == 0 {
        let text = "latencies are withheld: the two ends do not share a clock".to_owned();
        record.notes.push(Note::new("latency-withheld", text));
    }
    let latency = &times.latency;
    if let (Some(high), Some(low)) = (latency.quantile(0.999), latency.min()) {
        record.totals.insert(PDV_NS.to_owned(), high - low);
    }
    let distributions = [(LATENCY, times.latency), (VARIATION, times.variation), (GAP, times.gap)];
    let some = distributions.into_iter().filter(|(_, histogram)| histogram.count() > 0);
    record.distributions.extend(some.map(|(name, histogram)| (name.to_owned(), histogram)));
}

/// Adds the time from the rate change to the last lost frame, or why it is not known.
fn record_recovery(record: &mut Record, step: Option<RateStepTimes>) {
    let (id, text) = match step.map(RateStepTimes::recovery) {
        Some(Nanos::ZERO) => ("recovery", "no frame was lost after the rate had changed".to_owned()),
        Some(recovery) => ("recovery", format!("the last frame was lost {recovery} after the rate had changed")),
        None => {
            let why = "no frame of the second rate was seen on arrival; that takes a counter in XDP";
            ("recovery-withheld", format!("the recovery is withheld: {why}"))
        }
    };
    record.totals.extend(step.map(|step| (RECOVERY_NS.to_owned(), step.recovery().0)));
    record.notes.push(Note::new(id, text));
}

/// Counts until the trial is over and no late frame arrives anymore.
fn count(worker: &WorkerHandle<'_>, counter: &mut FrameCounter) -> fathom_sys::Result<()> {
    let tell = |counter: &mut FrameCounter| {
        let (arrivals, missed) = counter.read()?;
        let order = [arrivals.distinct(), arrivals.duplicates, arrivals.reordered];
        let counts = order.into_iter().chain([missed.socket, missed.ring_full, missed.fill_empty]);
        for (place, count) in counts.enumerate() {
            worker.raise(place, count.0);
        }
        Ok(arrivals.frames.0)
    };
    while !worker.is_over() {
        counter.wait()?;
        tell(counter)?;
    }
    let mut settling = QuietWait::begin();
    while settling.keeps_waiting(tell(counter)?) {}
    Ok(())
}
