//! The initiator: sends numbered frames at a rate or flat out.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::Arc,
};

use fathom_engine::{
    Crew, Error, Session, Test, Until,
    pace::{Process, Share},
};
use fathom_model::{
    Endpoints, Note, Record, Role, Settings, Side,
    names::count::{INTENDED, SCHEDULE_LAG_NS_MAX, SEND_REFUSED, SENT, UNSENT},
    units::{Nanos, approximate},
};
use fathom_sys::{clock, packet_socket::Queueing, policy::Policy};

use super::{
    NAME, SEND_TIME_NS, STEP_AT, STEP_RATE,
    content::{self, Reach},
    device::{Device, admit},
    endpoint,
    learning::{Learned, Learning},
    machine::clock_name,
    n_workers,
};
use crate::{
    backend::{self, Departures, Generator, Load, Pattern, Port, Stamping, Step},
    craft::{End, Ends, Setup},
    pktgen::Ports,
    wire::{MacAddress, Mark},
};

/// An initiator, ready to send.
#[derive(Debug)]
pub(super) struct Sending {
    device: Device,
    learned: Option<Learned>,
    generators: Vec<Box<dyn Generator>>,
    /// Nothing when they leave flat out.
    pattern: Option<Pattern>,
    /// Whether their number ends the trial.
    is_counted: bool,
    cores: Vec<usize>,
    notes: Vec<Note>,
}

/// Flat out, nothing is intended, so nothing can lag behind; the places are those of `backend::counter`.
const FLAT_OUT: &[&str] = &[SENT, SEND_REFUSED];
const PACED: &[&str] = &[SENT, SEND_REFUSED, INTENDED, SCHEDULE_LAG_NS_MAX, UNSENT];

/// The first of the ports that are nobody's (RFC 6335 section 6).
const SOURCE_PORT: u16 = 49_152;

impl Sending {
    pub(super) fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let mut device = Device::find(role)?;
        let (settings, reach) = (&role.settings, Reach::here(policy)?);
        let setup = Setup { ends: ends(&mut device, role, reach)?, mtu_bytes: device.mtu_bytes(), seed: role.seed };
        let permit = policy.permit_frames(setup.ends.target.addresses())?;
        let blueprint = Arc::new(content::blueprint(settings, &setup, (&device, reach))?);
        let (n_workers, n_flows) = (n_workers(settings), blueprint.n_flows);
        if n_workers > n_flows {
            let what = format!("{n_workers} workers need a flow each, and there are {n_flows}");
            let hint = Some(format!("--flows {n_workers}"));
            return Err(Error::Unsupported { what, hint });
        }
        let pattern = pattern(settings, role.seed)?;
        let tag = Mark::tag_of(told(role, endpoint::TRIAL)?);
        let is_same_clock = clock_name().is_some_and(|clock| role.peer.get(endpoint::CLOCK) == Some(&clock));
        let stamping = if is_same_clock { Stamping::Clock } else { Stamping::None };
        let of = usize::try_from(n_workers).unwrap_or(usize::MAX);
        let ports = told(role, endpoint::PKTGEN).ok().zip(told(role, endpoint::PKTGEN_EACH).ok());
        let pktgen = ports.map(|(first, each)| Ports { first, each });
        let load = |idx| {
            let share = Share { idx, of };
            let departures = pattern.as_ref().and_then(|pattern| Departures::new(pattern, share));
            let count = settings.count("count").map(|count| share_of(count, share));
            Load { blueprint: Arc::clone(&blueprint), tag, stamping, share, departures, count, pktgen }
        };
        let loads: Vec<Load> = (0..of).map(load).collect();
        let queueing = if settings.flag("qdisc") { Queueing::Discipline } else { Queueing::Bypass };
        let port = Port { ifindex: device.index(), name: device.name().to_owned(), queueing, permit };
        let mut notes = Vec::new();
        let word = settings.text("backend").unwrap_or_default();
        let generators = backend::choose(&word, &port, &loads, &mut notes)?;
        let learned = Learning::of(settings)?.precede((&device, &port.permit), (&blueprint, tag))?;
        let (is_counted, cores) = (settings.count("count").is_some(), role.cores.clone());
        Ok(Self { device, learned, generators, pattern, is_counted, cores, notes })
    }
}

/// From the first frame of any worker to the last of all.
fn took(spans: &[(Nanos, Nanos)]) -> Nanos {
    let began = spans.iter().map(|span| span.0).min().unwrap_or(Nanos::ZERO);
    spans.iter().map(|span| span.1).max().unwrap_or(began) - began
}

/// How long frames at equal distances take: the last one too has its turn until the next would be due.
fn turns(pattern: &Pattern, n_frames: u64) -> Nanos {
    if pattern.step.is_some() || pattern.process != Process::Constant {
        return Nanos::ZERO;
    }
    Nanos::from_secs_f64(approximate(n_frames) / pattern.rate.get())
}

/// What of a count is one worker's: what does not divide goes to the first.
fn share_of(count: u64, share: Share) -> u64 {
    let (idx, of) = (share.idx as u64, share.of as u64);
    count / of + u64::from(idx < count % of)
}

/// How frames are to follow each other; nothing when they are to leave flat out.
fn pattern(settings: &Settings, seed: u64) -> Result<Option<Pattern>, Error> {
    let is_poisson = settings.text("arrivals").is_some_and(|arrivals| arrivals == "poisson");
    let burst = settings.count("burst").and_then(|burst| u32::try_from(burst).ok()).unwrap_or(1);
    let step = step(settings)?;
    let Some(rate) = settings.rate("rate") else {
        let without = |what: &str| Error::Unsupported {
            what: format!("{what} need a rate: flat out, each frame leaves right behind the one before"),
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
    let process = if is_poisson { Process::Poisson { seed } } else { Process::Constant };
    Ok(Some(Pattern { rate, burst, process, step }))
}

/// The change of the rate that is asked for, if one is.
fn step(settings: &Settings) -> Result<Option<Step>, Error> {
    let half = |missing: &str, example: &str| Error::Unsupported {
        what: format!("a change of the rate needs --{missing} too"),
        hint: Some(format!("--{missing} {example}")),
    };
    match (settings.span(STEP_AT), settings.rate(STEP_RATE)) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(half(STEP_RATE, "50k")),
        (None, Some(_)) => Err(half(STEP_AT, "1s")),
        (Some(at), Some(rate)) if rate.get() > 0.0 => Ok(Some(Step { at, rate })),
        _ => Err(Error::Unsupported {
            what: "at a rate of zero nothing would be sent".to_owned(),
            hint: Some(format!("--{STEP_RATE} above zero; a stream that is to end then needs a shorter --duration")),
        }),
    }
}

/// This device and what the responder has told.
fn ends(device: &mut Device, role: &Role, reach: Reach) -> Result<Ends, Error> {
    let address: Ipv4Addr = told(role, endpoint::ADDRESS)?;
    let ipv6: Option<Ipv6Addr> = role.peer.get(endpoint::ADDRESS_V6).and_then(|text| text.parse().ok());
    let of_target = End { mac: MacAddress([0; 6]), ipv4: Some(address), ipv6, port: told(role, endpoint::PORT)? };
    let mac = target_mac(device, role, (&of_target, reach))?;
    if mac.is_group() || address.is_multicast() || address.is_broadcast() {
        let what = format!("{mac} and {address} must each be of a single host");
        return Err(Error::Unsupported { what, hint: None });
    }
    Ok(Ends {
        source: End { mac: device.mac, ipv4: Some(device.address), ipv6: device.address_v6, port: SOURCE_PORT },
        target: End { mac, ..of_target },
    })
}

/// The Ethernet address to send to; outside labs it is the one that this host's own kernel would send to.
fn target_mac(device: &mut Device, role: &Role, (target, reach): (&End, Reach)) -> Result<MacAddress, Error> {
    let asked = role.settings.text("mac").map(|text| text.parse::<MacAddress>()).transpose();
    let asked = asked.map_err(|error| Error::Unsupported { what: error.to_string(), hint: None })?;
    match (reach, asked) {
        (Reach::Lab, Some(asked)) => Ok(asked),
        (Reach::Lab, None) => {
            let router = target.ipv4.map(|address| device.router_to(address)).transpose()?.flatten();
            router.map_or_else(|| told::<MacAddress>(role, endpoint::MAC), Ok)
        }
        (Reach::World, asked) => {
            let address = target.addresses().next().ok_or(Error::Endpoint { kind: NAME, what: endpoint::ADDRESS })?;
            let known = device.neighbour_towards(address)?;
            let Some(asked) = asked.filter(|asked| *asked != known) else { return Ok(known) };
            Err(Error::Unsupported {
                what: format!("{asked} is not {address}: this host knows it, or the router to it, as {known}"),
                hint: Some("leave out --mac, or try it in a lab: --lab pair".to_owned()),
            })
        }
    }
}

/// What the responder has told under this key.
fn told<T: FromStr>(role: &Role, what: &'static str) -> Result<T, Error> {
    let value = role.peer.get(what).and_then(|text| text.parse().ok());
    value.ok_or(Error::Endpoint { kind: NAME, what })
}

impl Test for Sending {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let before = self.device.first_counts()?;
        let counters = if self.pattern.is_some() { PACED } else { FLAT_OUT };
        let crew = Crew { states: self.generators, counters, cores: &self.cores, until: Until::PhasesOver };
        // A device that goes down ends the trial; what was sent until then is kept.
        let conducted = crew.conduct(session, &mut (), |worker, mut generator| {
            let began = clock::now();
            let loss = generator.send(&worker).err();
            Ok((loss, generator.span().unwrap_or_else(|| (began, clock::now()))))
        })?;
        let mut record = conducted.record(Side::Initiator);
        let (losses, spans): (Vec<_>, Vec<_>) = conducted.workers.into_iter().unzip();
        let ended = took(&spans);
        record.totals.insert(SEND_TIME_NS.to_owned(), ended.0);
        if self.is_counted && record.complete {
            let turns = self.pattern.map_or(Nanos::ZERO, |pattern| turns(&pattern, record.totals[INTENDED]));
            record.measure_until(turns.max(ended));
        }
        let mut losses: Vec<_> = losses.into_iter().flatten().collect();
        if record.totals[SENT] == 0
            && let Some(cause) = losses.pop()
        {
            return Err(Error::System { what: format!("send frames out of {}", self.device.name()), cause });
        }
        losses.extend(self.device.close(&mut record, &before));
        admit(&mut record, &losses);
        record.notes.extend(self.notes);
        if let Some(learned) = self.learned {
            learned.tell(&mut record);
        }
        Ok(record)
    }
}
