//! The course of a test made of probes: the algorithm behind a trait, the world behind another.

use fathom_model::units::Nanos;

use super::{
    conversation::{Conversation, Order},
    reply::Reply,
};

/// What a course wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A probe is due.
    Send(Order),
    /// Nothing before this time, unless something arrives.
    Wait(Nanos),
    /// It has come to its end.
    Over,
}

/// What happened to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// The kernel took it.
    Sent(Order),
    /// It is longer than the own device or route takes.
    TooLong(Order),
    /// The own host had no way for it, which may be what the course is there to see.
    NoWay(Order),
    /// A device was handed it: the kernel's own time, later than that of [`Event::Sent`].
    Left {
        /// Which.
        tag: u16,
    },
    /// Something came back: what it is, and the whole packet.
    Heard(&'a Reply, &'a [u8]),
}

/// A test made of probes, as a state machine.
pub trait Course {
    /// What is to be done now.
    fn step(&mut self, now: Nanos) -> Step;

    /// Takes note of what happened at a time.
    fn note(&mut self, event: &Event<'_>, at: Nanos);
}

/// What the outside took of a probe, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed {
    /// It is under way since this time.
    Taken(Nanos),
    /// It is too long for the own device or route.
    TooLong,
    /// There is no room for it now.
    NoRoom,
    /// There was no way from the own host at this time: no route, or a device that is down.
    NoWay(Nanos),
}

/// A packet that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// One of this host's, handed to a device.
    Out(usize, Nanos),
    /// One for this host.
    In(usize, Nanos),
}

/// Where probes leave and answers arrive, with its clock.
pub trait Line {
    /// Why it fails.
    type Error;

    /// The time.
    fn now(&self) -> Nanos;

    /// Hands over a packet.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn send(&mut self, packet: &[u8]) -> Result<Handed, Self::Error>;

    /// Takes the next packet that passed, if there is one; the number is its length in the room.
    ///
    /// # Errors
    /// When nothing can be received any more.
    fn receive(&mut self, room: &mut [u8]) -> Result<Option<Passed>, Self::Error>;

    /// Waits until something passed, or a time has come.
    ///
    /// # Errors
    /// When it cannot wait.
    fn wait(&mut self, until: Nanos) -> Result<(), Self::Error>;

    /// Answers that found no room here, where that is known: they are not lost by the network.
    fn n_unheard(&self) -> Option<u64>;
}

/// Room for the longest packet of IP.
const ROOM: usize = 65_536;
/// How long to wait at most before looking whether somebody wants the end.
const LOOK_UP: Nanos = Nanos::from_millis(20);
/// How many probes go out in a row before answers are read: reading finds nothing most of the time.
const BURST: u32 = 8;
/// How many packets are read in a row before the course is asked again.
const DRAUGHT: u32 = 64;

/// What stands between a course and the world.
pub struct Conduct<'a, L: Line + ?Sized> {
    /// How probes are written and answers read.
    pub conversation: &'a Conversation,
    /// Where they go.
    pub line: &'a mut L,
    /// Whether the end is wanted.
    pub is_stopped: &'a dyn Fn() -> bool,
}

impl<L: Line + ?Sized> Conduct<'_, L> {
    /// Goes through a course to its end; returns whether it was cut short.
    ///
    /// # Errors
    /// When the line fails.
    pub fn run(&mut self, course: &mut dyn Course) -> Result<bool, L::Error> {
        let (mut room, mut packet) = (vec![0; ROOM], Vec::new());
        let mut n_in_a_row = 0;
        loop {
            if n_in_a_row == 0 || n_in_a_row >= BURST {
                self.read(course, &mut room)?;
                n_in_a_row = 0;
                if (self.is_stopped)() {
                    return Ok(true);
                }
            }
            let now = self.line.now();
            match course.step(now) {
                Step::Over => return Ok(false),
                Step::Wait(until) => {
                    n_in_a_row = 0;
                    self.line.wait(until.min(now + LOOK_UP))?;
                }
                Step::Send(order) => {
                    n_in_a_row += 1;
                    self.conversation.write(order, &mut packet);
                    match self.line.send(&packet)? {
                        Handed::Taken(at) => course.note(&Event::Sent(order), at),
                        Handed::TooLong => course.note(&Event::TooLong(order), now),
                        Handed::NoWay(at) => course.note(&Event::NoWay(order), at),
                        Handed::NoRoom => {
                            n_in_a_row = 0;
                            // A full queue empties within a few packets' time.
                            self.line.wait(now + Nanos::from_micros(100))?;
                        }
                    }
                }
            }
        }
    }

    fn read(&mut self, course: &mut dyn Course, room: &mut [u8]) -> Result<(), L::Error> {
        for _ in 0..DRAUGHT {
            match self.line.receive(room)? {
                None => return Ok(()),
                Some(Passed::Out(length, at)) => {
                    if let Some(tag) = self.conversation.own(&room[..length]) {
                        course.note(&Event::Left { tag }, at);
                    }
                }
                Some(Passed::In(length, at)) => {
                    if let Some(reply) = self.conversation.read(&room[..length]) {
                        course.note(&Event::Heard(&reply, &room[..length]), at);
                    }
                }
            }
        }
        Ok(())
    }
}
