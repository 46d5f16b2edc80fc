//! Learning frames, sent before a trial so that a device between the hosts learns where they are (RFC 2544 section 23).
//!
//! A bridge that does not know the receiver floods its frames, and a router that does not know its next hop holds frames back.
//! Without learning frames this would happen during the trial.

use fathom_engine::Error;
use fathom_model::{Note, Record, Settings, units::Nanos};
use fathom_sys::{
    clock,
    packet::packet_socket::{OfferResult, Queueing, Sender},
    policy::FramePermit as Permit,
};

use super::{
    device::TestDevice,
    options::{LEARNING, LEARNING_WAIT},
};
use crate::craft::FrameSet;
use fathom_wire::{Arp, Mark};

/// The total of learning frames sent by a host. No other count includes them.
pub const LEARNING_FRAMES: &str = "learning_frames";

/// Five times the time that the RFC allows a device.
const WAIT_MAX: Nanos = Nanos::from_secs(10);
/// How long to wait for a device that has no room before it has sent any other frame.
const DEVICE_READY_MAX: Nanos = Nanos::from_secs(1);
/// The longest single wait for room.
const ROOM: Nanos = Nanos::from_millis(1);

/// The options of learning frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct LearningOptions {
    n: u64,
    wait: Nanos,
}

impl LearningOptions {
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        let wait = settings.span(LEARNING_WAIT).unwrap_or(Nanos::ZERO);
        if wait > WAIT_MAX {
            let what =
                format!("{wait} are longer than any device takes to learn: {LEARNING_WAIT} is at most {WAIT_MAX}");
            return Err(Error::Unsupported { what, hint: Some(format!("--{LEARNING_WAIT} 2s")) });
        }
        Ok(Self { n: settings.count(LEARNING).unwrap_or(0), wait })
    }

    /// The note of a receiver that sends none. On a served host they would reach everybody on its wire.
    pub(super) fn withheld_note(self) -> Option<Note> {
        let text = "a served host sends no learning frames; a device in between learns its address from the control connection";
        (self.n > 0).then(|| Note::new("learning-withheld", text))
    }

    /// Announces the receiver on its wire.
    pub(super) fn send_announcement(
        self,
        device: &TestDevice,
        permit: &Permit,
    ) -> Result<Option<LearningFrames>, Error> {
        let frame = Arp::announcement(device.mac, device.address);
        self.send(device, permit, |_| frame.to_vec())
    }

    /// Sends the first frame of each of the first flows, and gives the device time to learn.
    ///
    /// They do not carry the mark of the trial, so the receiver does not count them. Frames without marks are not sent, because
    /// they could not be told from those of the trial.
    pub(super) fn send_first_frames(
        self,
        device: &TestDevice,
        permit: &Permit,
        blueprint: &FrameSet,
        tag: u32,
    ) -> Result<Option<LearningFrames>, Error> {
        let learned = match blueprint.mark_at() {
            Some(_) => self.send(device, permit, |nth| first_frame_of(blueprint, tag, nth))?,
            None => None,
        };
        if self.n > 0 {
            clock::sleep_until(clock::now() + self.wait);
        }
        Ok(learned)
    }

    fn send(
        self,
        device: &TestDevice,
        permit: &Permit,
        frame: impl Fn(u64) -> Vec<u8>,
    ) -> Result<Option<LearningFrames>, Error> {
        if self.n == 0 {
            return Ok(None);
        }
        let what = || format!("send learning frames out of {}", device.name());
        let failed = |cause| Error::system(what(), "CAP_NET_RAW", cause);
        let sender = Sender::open(device.index(), Queueing::Discipline, permit).map_err(failed)?;
        let deadline = clock::now() + DEVICE_READY_MAX;
        let mut n_sent = 0;
        while n_sent < self.n && clock::now() < deadline {
            let frame = frame(n_sent);
            match sender.send(std::iter::once(frame.as_slice())).map_err(failed)? {
                OfferResult::Accepted(n) => n_sent += n as u64,
                OfferResult::Dropped | OfferResult::Busy => {
                    sender.wait(ROOM).map_err(failed)?;
                }
            }
        }
        Ok(Some(LearningFrames { n_sent }))
    }
}

/// The first frame of a flow, with a mark that belongs to no trial.
fn first_frame_of(blueprint: &FrameSet, tag: u32, nth: u64) -> Vec<u8> {
    let flow = u32::try_from(nth % u64::from(blueprint.n_flows)).expect("it is less than the number of flows");
    let mark = Mark { tag: !tag, flow, sequence: 0, sent: 0 };
    let shape = blueprint.template(flow, 0);
    let mut frame = shape.bytes.clone();
    shape.write(&mut frame, &blueprint.frame_index(flow, 0, mark.bytes()));
    frame
}

/// The learning frames that a host has sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct LearningFrames {
    n_sent: u64,
}

impl LearningFrames {
    /// Adds their number to a record, apart from the frames of the trial.
    pub(super) fn add_to(self, record: &mut Record) {
        let n_sent = self.n_sent;
        record.totals.insert(LEARNING_FRAMES.to_owned(), n_sent);
        let text = format!("{n_sent} learning frames were sent before the trial and are not counted in it");
        record.notes.push(Note::new("learning", text));
    }
}
