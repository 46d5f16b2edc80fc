//! The course of a test made of probes: the algorithm behind a trait, the world behind another.

use fathom_model::units::Nanos;

use super::{
    reply::Reply,
    template::{ProbeFields, ProbeTemplate},
};

/// What a course wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeStep {
    /// A probe is due.
    Send(ProbeFields),
    /// Nothing before this time, unless something arrives.
    Wait(Nanos),
    /// It has come to its end.
    Done,
}

/// What happened to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeEvent<'a> {
    /// The kernel took it.
    Sent(ProbeFields),
    /// It is longer than the own device or route takes.
    TooLong(ProbeFields),
    /// The own host had no way for it, which may be what the course is there to see.
    NoRoute(ProbeFields),
    /// A device was handed it: the kernel's own time, later than that of [`ProbeEvent::Sent`].
    Transmitted {
        /// Which.
        tag: u16,
    },
    /// Something came back: what it is, and the whole packet.
    Reply(&'a Reply, &'a [u8]),
}

/// A test made of probes, as a state machine.
pub trait ProbeDriver {
    /// What is to be done now.
    fn step(&mut self, now: Nanos) -> ProbeStep;

    /// Takes note of what happened at a time.
    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos);
}

/// What the outside took of a probe, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is under way since this time.
    Sent(Nanos),
    /// It is too long for the own device or route.
    TooLong,
    /// There is no room for it now.
    WouldBlock,
    /// There was no way from the own host at this time: no route, or a device that is down.
    NoRoute(Nanos),
}

/// A packet that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturedPacket {
    /// One of this host's, handed to a device.
    Outgoing(usize, Nanos),
    /// One for this host.
    Incoming(usize, Nanos),
}

/// Where probes leave and answers arrive, with its clock.
pub trait ProbeTransport {
    /// Why it fails.
    type Error;

    /// The time.
    fn now(&self) -> Nanos;

    /// Hands over a packet.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn send(&mut self, packet: &[u8]) -> Result<SendOutcome, Self::Error>;

    /// Takes the next packet that passed, if there is one; the number is its length in the room.
    ///
    /// # Errors
    /// When nothing can be received any more.
    fn receive(&mut self, room: &mut [u8]) -> Result<Option<CapturedPacket>, Self::Error>;

    /// Waits until something passed, or a time has come.
    ///
    /// # Errors
    /// When it cannot wait.
    fn wait(&mut self, until: Nanos) -> Result<(), Self::Error>;

    /// Answers that found no room here, where that is known: they are not lost by the network.
    fn n_dropped_replies(&self) -> Option<u64>;
}

/// Room for the longest packet of IP.
const ROOM: usize = 65_536;
/// How long to wait at most before looking whether somebody wants the end.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// How many probes go out in a row before answers are read: reading finds nothing most of the time.
const BURST: u32 = 8;
/// How many packets are read in a row before the course is asked again.
const READ_BURST: u32 = 64;

/// What stands between a course and the world.
pub struct ProbeRunner<'a, L: ProbeTransport + ?Sized> {
    /// How probes are written and answers read.
    pub template: &'a ProbeTemplate,
    /// Where they go.
    pub transport: &'a mut L,
    /// Whether the end is wanted.
    pub is_stopped: &'a dyn Fn() -> bool,
}

impl<L: ProbeTransport + ?Sized> ProbeRunner<'_, L> {
    /// Goes through a course to its end; returns whether it was cut short.
    ///
    /// # Errors
    /// When the line fails.
    pub fn run(&mut self, course: &mut dyn ProbeDriver) -> Result<bool, L::Error> {
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
            let now = self.transport.now();
            match course.step(now) {
                ProbeStep::Done => return Ok(false),
                ProbeStep::Wait(until) => {
                    n_in_a_row = 0;
                    self.transport.wait(until.min(now + POLL_INTERVAL))?;
                }
                ProbeStep::Send(order) => {
                    n_in_a_row += 1;
                    self.template.write(order, &mut packet);
                    match self.transport.send(&packet)? {
                        SendOutcome::Sent(at) => course.on_event(&ProbeEvent::Sent(order), at),
                        SendOutcome::TooLong => course.on_event(&ProbeEvent::TooLong(order), now),
                        SendOutcome::NoRoute(at) => course.on_event(&ProbeEvent::NoRoute(order), at),
                        SendOutcome::WouldBlock => {
                            n_in_a_row = 0;
                            // A full queue empties within a few packets' time.
                            self.transport.wait(now + Nanos::from_micros(100))?;
                        }
                    }
                }
            }
        }
    }

    fn read(&mut self, course: &mut dyn ProbeDriver, room: &mut [u8]) -> Result<(), L::Error> {
        for _ in 0..READ_BURST {
            match self.transport.receive(room)? {
                None => return Ok(()),
                Some(CapturedPacket::Outgoing(length, at)) => {
                    if let Some(tag) = self.template.own_tag(&room[..length]) {
                        course.on_event(&ProbeEvent::Transmitted { tag }, at);
                    }
                }
                Some(CapturedPacket::Incoming(length, at)) => {
                    if let Some(reply) = self.template.read(&room[..length]) {
                        course.on_event(&ProbeEvent::Reply(&reply, &room[..length]), at);
                    }
                }
            }
        }
        Ok(())
    }
}
