//! The initiator: sends numbered frames at a rate or flat out.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::Arc,
};

use fathom_engine::{
    EndCondition, Error, Test, TrialContext, WorkerPool,
    pace::{ArrivalProcess, WorkShare},
};
use fathom_model::{
    Endpoints, MacAddress, Note, Record, Role, Settings, Side,
    names::count::{INTENDED, SCHEDULE_LAG_NS_MAX, SEND_REFUSED, SENT, UNSENT},
    units::{Nanos, approximate},
};
use fathom_sys::{clock, packet::packet_socket::Queueing, policy::Policy};

use super::{
    NAME, SEND_TIME_NS, STEP_AT, STEP_RATE,
    clock_id::clock_name,
    device::{TestDevice, note_unavailable},
    endpoint,
    frame_options::{self, NetworkScope},
    learning::{LearningFrames, LearningOptions},
    n_workers,
};
use crate::{
    backend::{self, DeparturePattern, DepartureSchedule, Generator, OutputDevice, RateStep, Timestamping, WorkerLoad},
    craft::{FrameContext, FrameEndpoint, FrameEndpoints},
};
use fathom_pktgen::DevicePorts;
use fathom_wire::Mark;

/// An initiator, ready to send.
#[derive(Debug)]
pub(super) struct FramesSender {
    device: TestDevice,
    learning_frames: Option<LearningFrames>,
    generators: Vec<Box<dyn Generator>>,
    /// `None` for flat out.
    pattern: Option<DeparturePattern>,
    /// Whether a number of frames ends the trial.
    is_counted: bool,
    cores: Vec<usize>,
    notes: Vec<Note>,
}

/// Counters without a schedule: no frame is due, so none can be late. Their order is that of `backend::counter`.
const FLAT_OUT: &[&str] = &[SENT, SEND_REFUSED];
const PACED: &[&str] = &[SENT, SEND_REFUSED, INTENDED, SCHEDULE_LAG_NS_MAX, UNSENT];

/// The first dynamic port (RFC 6335 section 6).
const SOURCE_PORT: u16 = 49_152;

impl FramesSender {
    pub(super) fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let mut device = TestDevice::find(role)?;
        let (settings, reach) = (&role.settings, NetworkScope::of_thread(policy)?);
        let setup = FrameContext {
            ends: frame_endpoints(&mut device, role, reach)?,
            mtu_bytes: device.mtu_bytes(),
            seed: role.seed,
        };
        let permit = policy.permit_frames(setup.ends.target.addresses())?;
        let blueprint = Arc::new(frame_options::frame_set(settings, &setup, &device, reach)?);
        let (n_workers, n_flows) = (n_workers(settings), blueprint.n_flows);
        if n_workers > n_flows {
            let what = format!("{n_workers} workers need a flow each, and there are {n_flows}");
            let hint = Some(format!("--flows {n_workers}"));
            return Err(Error::Unsupported { what, hint });
        }
        let pattern = pattern(settings, role.seed)?;
        let tag = Mark::tag_of(responder_value(role, endpoint::TRIAL)?);
        let is_same_clock = clock_name().is_some_and(|clock| role.peer.get(endpoint::CLOCK) == Some(&clock));
        let stamping = if is_same_clock { Timestamping::Clock } else { Timestamping::None };
        let of = usize::try_from(n_workers).unwrap_or(usize::MAX);
        let ports = responder_value(role, endpoint::PKTGEN).ok().zip(responder_value(role, endpoint::PKTGEN_EACH).ok());
        let pktgen = ports.map(|(first, each)| DevicePorts { first, each });
        let load = |idx| {
            let share = WorkShare { idx, of };
            let departures = pattern.as_ref().and_then(|pattern| DepartureSchedule::new(pattern, share));
            let count = settings.count("count").map(|count| share_of(count, share));
            WorkerLoad { frames: Arc::clone(&blueprint), tag, timestamping: stamping, share, departures, count, pktgen }
        };
        let loads: Vec<WorkerLoad> = (0..of).map(load).collect();
        let queueing = if settings.flag("qdisc") { Queueing::Discipline } else { Queueing::Bypass };
        let port = OutputDevice { ifindex: device.index(), name: device.name().to_owned(), queueing, permit };
        let mut notes = Vec::new();
        let word = settings.text("backend").unwrap_or_default();
        let generators = backend::open_generators(&word, &port, &loads, &mut notes)?;
        let learned = LearningOptions::of(settings)?.send_first_frames(&device, &port.permit, &blueprint, tag)?;
        let (is_counted, cores) = (settings.count("count").is_some(), role.cores.clone());
        Ok(Self { device, learning_frames: learned, generators, pattern, is_counted, cores, notes })
    }
}

/// The time from the first frame of any worker to the last frame of any worker.
fn total_span(spans: &[(Nanos, Nanos)]) -> Nanos {
    let began = spans.iter().map(|span| span.0).min().unwrap_or(Nanos::ZERO);
    spans.iter().map(|span| span.1).max().unwrap_or(began) - began
}

/// The duration of frames at equal gaps. It includes the gap after the last frame.
fn schedule_length(pattern: &DeparturePattern, n_frames: u64) -> Nanos {
    if pattern.rate_step.is_some() || pattern.process != ArrivalProcess::Constant {
        return Nanos::ZERO;
    }
    Nanos::from_secs_f64(approximate(n_frames) / pattern.rate.get())
}

/// One worker's share of a count. The first workers get the remainder.
fn share_of(count: u64, share: WorkShare) -> u64 {
    let (idx, of) = (share.idx as u64, share.of as u64);
    count / of + u64::from(idx < count % of)
}

/// Returns the departure pattern; `None` for flat out.
fn pattern(settings: &Settings, seed: u64) -> Result<Option<DeparturePattern>, Error> {
    let is_poisson = settings.text("arrivals").is_some_and(|arrivals| arrivals == "poisson");
    let burst = settings.count("burst").and_then(|burst| u32::try_from(burst).ok()).unwrap_or(1);
    let step = step(settings)?;
    let Some(rate) = settings.rate("rate") else {
        let without = |what: &str| Error::Unsupported {
            what: format!("{what} need a rate: flat out, each frame leaves directly after the previous one"),
            hint: Some("--rate 100k".to_owned()),
        };
        return match (is_poisson, burst > 1, step) {
            (true, ..) => Err(without("Poisson arrivals")),
            (_, true, _) => Err(without("bursts")),
            (.., Some(_)) => Err(without("changes of the rate")),
            _ => Ok(None),
        };
    };
    if is_poisson && step.is_some() {
        return Err(Error::Unsupported {
            what: "the rate of Poisson arrivals does not change within a trial".to_owned(),
            hint: Some("--arrivals constant".to_owned()),
        });
    }
    if rate.get() <= 0.0 {
        return Err(Error::Unsupported { what: "at a rate of zero nothing would be sent".to_owned(), hint: None });
    }
    let process = if is_poisson { ArrivalProcess::Poisson { seed } } else { ArrivalProcess::Constant };
    Ok(Some(DeparturePattern { rate, burst, process, rate_step: step }))
}

/// Returns the requested rate change, if any.
fn step(settings: &Settings) -> Result<Option<RateStep>, Error> {
    let half = |missing: &str, example: &str| Error::Unsupported {
        what: format!("a change of the rate needs --{missing} too"),
        hint: Some(format!("--{missing} {example}")),
    };
    match (settings.span(STEP_AT), settings.rate(STEP_RATE)) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(half(STEP_RATE, "50k")),
        (None, Some(_)) => Err(half(STEP_AT, "1s")),
        (Some(at), Some(rate)) if rate.get() > 0.0 => Ok(Some(RateStep { at, rate })),
        _ => Err(Error::Unsupported {
            what: "at a rate of zero nothing would be sent".to_owned(),
            hint: Some(format!("--{STEP_RATE} above zero; a stream that is to end then needs a shorter --duration")),
        }),
    }
}

/// Returns this device and the endpoint that the responder has sent.
fn frame_endpoints(device: &mut TestDevice, role: &Role, reach: NetworkScope) -> Result<FrameEndpoints, Error> {
    let address: Ipv4Addr = responder_value(role, endpoint::ADDRESS)?;
    let ipv6: Option<Ipv6Addr> = role.peer.get(endpoint::ADDRESS_V6).and_then(|text| text.parse().ok());
    let of_target = FrameEndpoint {
        mac: MacAddress::default(),
        ipv4: Some(address),
        ipv6,
        port: responder_value(role, endpoint::PORT)?,
    };
    // The responder tells its IPv6 address if frames go to it.
    let carried = ipv6.map_or(IpAddr::V4(address), IpAddr::V6);
    let mac = target_mac(device, role, carried, reach)?;
    if mac.is_group() || carried.is_multicast() || address.is_multicast() || address.is_broadcast() {
        let what = format!("{mac} and {carried} must each be of a single host");
        return Err(Error::Unsupported { what, hint: None });
    }
    Ok(FrameEndpoints {
        source: FrameEndpoint {
            mac: device.mac,
            ipv4: Some(device.address),
            ipv6: device.address_v6,
            port: SOURCE_PORT,
        },
        target: FrameEndpoint { mac, ..of_target },
    })
}

/// Returns the MAC address for frames to this address. Outside labs it must be the one that this host's own kernel would use.
fn target_mac(device: &mut TestDevice, role: &Role, address: IpAddr, reach: NetworkScope) -> Result<MacAddress, Error> {
    let asked = role.settings.text("mac").map(|text| text.parse::<MacAddress>()).transpose();
    let asked = asked.map_err(|error| Error::Unsupported { what: error.to_string(), hint: None })?;
    match (reach, asked) {
        (NetworkScope::Lab, Some(asked)) => Ok(asked),
        (NetworkScope::Lab, None) => {
            let router = device.router_to(address)?;
            router.map_or_else(|| responder_value::<MacAddress>(role, endpoint::MAC), Ok)
        }
        (NetworkScope::SharedWire, asked) => {
            let known = device.neighbour_towards(address)?;
            let Some(asked) = asked.filter(|asked| *asked != known) else { return Ok(known) };
            Err(Error::Unsupported {
                what: format!("{asked} is not {address}: this host knows it, or the router to it, as {known}"),
                hint: Some("leave out --mac, or try it in a lab: --lab pair".to_owned()),
            })
        }
    }
}

/// Returns a value that the responder has sent.
fn responder_value<T: FromStr>(role: &Role, what: &'static str) -> Result<T, Error> {
    let value = role.peer.get(what).and_then(|text| text.parse().ok());
    value.ok_or(Error::Endpoint { kind: NAME, what })
}

impl Test for FramesSender {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let before = self.device.initial_counts()?;
        let counters = if self.pattern.is_some() { PACED } else { FLAT_OUT };
        let pool =
            WorkerPool { states: self.generators, counters, cores: &self.cores, until: EndCondition::PhasesOver };
        // A device that goes down ends the trial; the frames sent before that are kept.
        let results = pool.run(context, &mut (), |worker, mut generator| {
            let began = clock::now();
            let loss = generator.send(&worker).err();
            Ok((loss, generator.span().unwrap_or_else(|| (began, clock::now()))))
        })?;
        let mut record = results.record(Side::Initiator);
        let (losses, spans): (Vec<_>, Vec<_>) = results.workers.into_iter().unzip();
        let ended = total_span(&spans);
        record.totals.insert(SEND_TIME_NS.to_owned(), ended.0);
        if self.is_counted && record.complete {
            let turns = self.pattern.map_or(Nanos::ZERO, |pattern| schedule_length(&pattern, record.totals[INTENDED]));
            record.measure_until(turns.max(ended));
        }
        let mut losses: Vec<_> = losses.into_iter().flatten().collect();
        if record.totals[SENT] == 0
            && let Some(cause) = losses.pop()
        {
            return Err(Error::System { what: format!("send frames out of {}", self.device.name()), cause });
        }
        losses.extend(self.device.record_growth(&mut record, &before));
        note_unavailable(&mut record, &losses);
        record.notes.extend(self.notes);
        if let Some(learned) = self.learning_frames {
            learned.add_to(&mut record);
        }
        Ok(record)
    }
}
