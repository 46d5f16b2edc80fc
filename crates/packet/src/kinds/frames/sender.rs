//! The initiator: sends numbered frames at a rate or flat out.

use std::str::FromStr;

use fathom_engine::{Crew, Error, Session, Test, Until, Worker, pace::Constant};
use fathom_model::{
    Endpoints, Record, Role, Settings, Side,
    names::count::{INTENDED, SCHEDULE_LAG_NS_MAX, SEND_REFUSED, SENT},
    units::{Nanos, PerSec, approximate},
};
use fathom_sys::{
    clock,
    packet_socket::{Arena, MAX_BATCH, Offer, Queueing, Sender},
};

use super::{
    NAME,
    device::{Device, admit},
    endpoint, frame_size, n_flows,
    schedule::Schedule,
};
use crate::wire::{Endpoint, Flow, MacAddress, Template};

/// An initiator, ready to send.
#[derive(Debug)]
pub(super) struct Sending {
    device: Device,
    streams: Vec<Stream>,
    cores: Vec<usize>,
}

/// What one worker sends: one flow.
#[derive(Debug)]
struct Stream {
    socket: Sender,
    template: Template,
    arena: Arena,
    /// Flat out without one.
    schedule: Option<Schedule>,
    /// Until the time is over without one.
    count: Option<u64>,
}

/// Flat out, nothing is intended, so nothing can lag behind.
const FLAT_OUT: &[&str] = &[SENT, SEND_REFUSED];
const PACED: &[&str] = &[SENT, SEND_REFUSED, INTENDED, SCHEDULE_LAG_NS_MAX];
// Places in the tables above.
const N_SENT: usize = 0;
const N_REFUSED: usize = 1;
const N_INTENDED: usize = 2;
const LAG: usize = 3;

/// The first of the ports that are nobody's (RFC 6335 section 6).
const SOURCE_PORT: u16 = 49_152;
/// A sleep ends up to this much late (timer slack, and waking), so shorter waits are spent awake.
const SLEEP_ERROR: Nanos = Nanos::from_micros(100);
/// How long to sleep at most before looking whether the trial is over.
const LOOK_UP: Nanos = Nanos::from_millis(20);
/// How long to wait at most for room in the send buffer before looking whether the trial is over.
const ROOM: Nanos = Nanos::from_millis(1);

impl Sending {
    pub(super) fn prepare(role: &Role) -> Result<Self, Error> {
        let mut device = Device::find(role)?;
        let settings = &role.settings;
        let size = frame_size(settings)?;
        device.require_mtu(size)?;
        if settings.rate("rate").is_some_and(|rate| rate.get() <= 0.0) {
            return Err(unsupported("at a rate of zero nothing would be sent".to_owned()));
        }
        let first = flow(&mut device, role)?;
        let n_flows = n_flows(settings);
        let open = |number| {
            let source = Endpoint { port: SOURCE_PORT + number, ..first.source };
            let template = Template::new(&Flow { source, number, ..first }, size);
            Stream::open(&device, settings, (number, n_flows), template)
        };
        let streams = (0..n_flows).map(open).collect::<Result<_, _>>()?;
        Ok(Self { device, streams, cores: role.cores.clone() })
    }
}

/// The first flow from this device to what the responder has told.
fn flow(device: &mut Device, role: &Role) -> Result<Flow, Error> {
    let given = role.settings.text("mac");
    let address = told(role, endpoint::ADDRESS)?;
    let mac = match &given {
        Some(text) => text.parse().map_err(|error: crate::wire::MacError| unsupported(error.to_string()))?,
        None => match device.router_to(address)? {
            Some(router) => router,
            None => told::<MacAddress>(role, endpoint::MAC)?,
        },
    };
    let destination = Endpoint { mac, address, port: told(role, endpoint::PORT)? };
    if mac.is_group() || address.is_multicast() || address.is_broadcast() {
        return Err(unsupported(format!("{mac} and {address} must each be of a single host")));
    }
    let source = Endpoint { mac: device.mac, address: device.address, port: SOURCE_PORT };
    Ok(Flow { source, destination, trial: told(role, endpoint::TRIAL)?, number: 0 })
}

fn unsupported(what: String) -> Error {
    Error::Unsupported { what, hint: None }
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
        let is_paced = self.streams.iter().any(|stream| stream.schedule.is_some());
        let counters = if is_paced { PACED } else { FLAT_OUT };
        let crew = Crew { states: self.streams, counters, cores: &self.cores, until: Until::PhasesOver };
        // A device that goes down ends the trial; what was sent until then is kept.
        let conducted = crew.conduct(session, &mut (), |worker, mut stream| Ok(stream.send(&worker).err()))?;
        let mut record = conducted.record(Side::Initiator);
        let mut losses: Vec<_> = conducted.workers.into_iter().flatten().collect();
        if record.totals[SENT] == 0
            && let Some(cause) = losses.pop()
        {
            return Err(Error::System { what: format!("send frames out of {}", self.device.name()), cause });
        }
        losses.extend(self.device.close(&mut record, &before));
        admit(&mut record, &losses);
        Ok(record)
    }
}

impl Stream {
    /// One of several flows, which share the rate and the count that were asked for.
    fn open(
        device: &Device,
        settings: &Settings,
        (number, n_flows): (u16, u16),
        template: Template,
    ) -> Result<Self, Error> {
        let queueing = if settings.flag("qdisc") { Queueing::Discipline } else { Queueing::Bypass };
        let what = || format!("open a packet socket on {}", device.name());
        let socket =
            Sender::open(device.index(), queueing).map_err(|cause| Error::system(what(), "CAP_NET_RAW", cause))?;
        let (number, n_flows) = (u64::from(number), u64::from(n_flows));
        let rate = settings.rate("rate").and_then(|rate| PerSec::new(rate.get() / approximate(n_flows)));
        Ok(Self {
            socket,
            arena: Arena::of(template.bytes(), MAX_BATCH),
            template,
            schedule: rate.and_then(Constant::new).map(Schedule::new),
            // What does not divide goes to the first flows.
            count: settings.count("count").map(|count| count / n_flows + u64::from(number < count % n_flows)),
        })
    }

    fn send(&mut self, worker: &Worker<'_>) -> fathom_sys::Result<()> {
        let end = self.count.unwrap_or(u64::MAX);
        let mut next = 0;
        while next < end && !worker.is_over() {
            let due = match &mut self.schedule {
                Some(schedule) => on_schedule(worker, schedule, (next, end)),
                None => end,
            };
            let batch = usize::try_from(due - next).unwrap_or(MAX_BATCH).min(MAX_BATCH);
            if batch == 0 {
                continue;
            }
            for (number, frame) in (next..).zip(self.arena.frames_mut().take(batch)) {
                self.template.number(frame, number);
            }
            match self.socket.send(self.arena.frames().take(batch))? {
                Offer::Accepted(n) => {
                    worker.add(N_SENT, n as u64);
                    next += n as u64;
                }
                Offer::Dropped => {
                    worker.add(N_REFUSED, 1);
                    next += 1;
                }
                Offer::Busy => {
                    self.socket.wait(ROOM)?;
                }
            }
        }
        Ok(())
    }
}

/// How many frames are to be sent by now; when none is due, waits for the next one first, but not long.
fn on_schedule(worker: &Worker<'_>, schedule: &mut Schedule, (next, end): (u64, u64)) -> u64 {
    let now = clock::now();
    let elapsed = now - worker.start;
    let wait = schedule.wait(elapsed, next);
    if wait > SLEEP_ERROR {
        clock::sleep_until(now + (wait - SLEEP_ERROR).min(LOOK_UP));
        return next;
    }
    if wait > Nanos::ZERO {
        std::hint::spin_loop();
        return next;
    }
    worker.raise(LAG, schedule.lag(elapsed, next).0);
    let due = schedule.due(elapsed, next).min(end);
    worker.raise(N_INTENDED, schedule.intended(due));
    due
}
