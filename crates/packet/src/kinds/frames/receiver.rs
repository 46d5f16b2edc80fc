//! The responder: counts what arrives, and what its device and host dropped.

use fathom_engine::{Crew, Error, Session, Stop, Test, Until, Worker};
use fathom_model::{
    Endpoints, Note, Record, Role, Side,
    names::{
        count::{DUPLICATES, RECEIVED, REORDERED, SOCKET_DROPPED},
        host::{DEV_RX_DROPPED, DEV_RX_FRAMES},
    },
};
use fathom_sys::clock;

use super::{
    PORT,
    counter::{Counter, Expected},
    device::{Device, Settling, admit},
    endpoint, frame_size, n_flows,
};

/// A responder, ready to count.
#[derive(Debug)]
pub(super) struct Receiving {
    device: Device,
    counter: Counter,
    trial: u32,
    cores: Vec<usize>,
    notes: Vec<Note>,
}

const COUNTERS: &[&str] = &[RECEIVED, DUPLICATES, REORDERED, SOCKET_DROPPED];

impl Receiving {
    pub(super) fn prepare(role: &Role) -> Result<Self, Error> {
        let mut device = Device::find(role)?;
        device.require_mtu(frame_size(&role.settings)?)?;
        // Trials of one plan may share a seed; the clock tells a late frame of an earlier one from those of this one.
        let mixed = role.seed ^ clock::now().0;
        let trial = u32::try_from((mixed ^ mixed >> 32) & u64::from(u32::MAX)).expect("32 bits are left");
        let mut notes = Vec::new();
        let expected = Expected { trial, n_flows: n_flows(&role.settings) };
        let counter = Counter::open(&device, &role.settings, expected, &mut notes)?;
        device.wait_for_carrier()?;
        Ok(Self { device, counter, trial, cores: role.cores.clone(), notes })
    }
}

impl Test for Receiving {
    fn endpoints(&self) -> Endpoints {
        let text = |key: &str, value: String| (key.to_owned(), value);
        Endpoints::from([
            text(endpoint::MAC, self.device.mac.to_string()),
            text(endpoint::ADDRESS, self.device.address.to_string()),
            text(endpoint::PORT, PORT.to_string()),
            text(endpoint::TRIAL, self.trial.to_string()),
            text(endpoint::COUNTER, self.counter.describe()),
        ])
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let before = self.device.first_counts()?;
        let crew = Crew { states: vec![&mut self.counter], counters: COUNTERS, cores: &self.cores, until: Until::Told };
        let conducted = crew.conduct(session, &mut (), |worker, counter| {
            let what = || "count the frames that arrived".to_owned();
            count(&worker, counter).map_err(|cause| Error::System { what: what(), cause })
        })?;
        let mut record = conducted.record(Side::Responder);
        let loss = self.device.close(&mut record, &before);
        admit(&mut record, loss.as_slice());
        record.notes.extend(self.notes);
        if record.totals[RECEIVED] == 0 && session.stop.told() == Stop::Finish {
            let total = |name: &str| record.totals.get(name).copied().unwrap_or(0);
            let (name, frames, dropped) = (self.device.name(), total(DEV_RX_FRAMES), total(DEV_RX_DROPPED));
            let what = format!(
                "has finished, and none of its frames arrived at {name}, which received {frames} frames of any kind and \
                 dropped {dropped} meanwhile"
            );
            return Err(Error::Peer { what });
        }
        Ok(record)
    }
}

/// Counts until the trial is over and no late frame arrives any more.
fn count(worker: &Worker<'_>, counter: &mut Counter) -> fathom_sys::Result<()> {
    let tell = |counter: &mut Counter| {
        let (arrivals, dropped) = counter.read()?;
        let counts = [arrivals.distinct(), arrivals.duplicates, arrivals.reordered, dropped];
        for (place, count) in counts.into_iter().enumerate() {
            worker.raise(place, count.0);
        }
        Ok(arrivals.frames.0)
    };
    while !worker.is_over() {
        counter.wait()?;
        tell(counter)?;
    }
    let mut settling = Settling::begin();
    while settling.go_on(tell(counter)?) {}
    Ok(())
}
