//! Runs a probe test: the algorithm behind one trait, the network behind another.

use fathom_model::units::Nanos;

use super::{
    reply::Reply,
    template::{ProbeFields, ProbeTemplate},
};

/// The next action of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeStep {
    /// A probe is due.
    Send(ProbeFields),
    /// There is nothing to do before this time unless something arrives.
    Wait(Nanos),
    /// The test has ended.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeEvent<'a> {
    /// The kernel accepted it.
    Sent(ProbeFields),
    /// It is longer than the local device or route allows.
    TooLong(ProbeFields),
    /// This host had no route for it. A test may want to see exactly this.
    NoRoute(ProbeFields),
    /// It was handed to a device. The time is the kernel's own, and later than that of [`ProbeEvent::Sent`].
    Transmitted {
        /// The tag of the probe.
        tag: u16,
    },
    /// A packet came back: its parsed form, and the whole packet.
    Reply(&'a Reply, &'a [u8]),
}

/// A probe test as a state machine.
pub trait ProbeDriver {
    /// Returns the next action.
    fn step(&mut self, now: Nanos) -> ProbeStep;

    /// Records an event and its time.
    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos);
}

/// The outcome of sending a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// It was sent at this time.
    Sent(Nanos),
    /// It is too long for the local device or route.
    TooLong,
    /// There is no room for it now.
    WouldBlock,
    /// This host had no way to send it at this time: no route, or a device that is down.
    NoRoute(Nanos),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturedPacket {
    /// A packet of this host, handed to a device, with the time if the kernel reported one.
    Outgoing(usize, Option<Nanos>),
    /// A packet for this host.
    Incoming(usize, Nanos),
}

/// Sends probes and receives answers, and has the clock for both.
pub trait ProbeTransport {
    type Error;

    /// Returns the time.
    fn now(&self) -> Nanos;

    /// Sends a packet.
    ///
    /// # Errors
    /// If nothing can be sent anymore.
    fn send(&mut self, packet: &[u8]) -> Result<SendOutcome, Self::Error>;

    /// Takes the next captured packet, if there is one. The number in it is its length in `room`.
    ///
    /// # Errors
    /// If nothing can be received anymore.
    fn receive(&mut self, room: &mut [u8]) -> Result<Option<CapturedPacket>, Self::Error>;

    /// Waits until a packet was captured, or until a given time.
    ///
    /// # Errors
    /// If it cannot wait.
    fn wait(&mut self, until: Nanos) -> Result<(), Self::Error>;

    /// Returns the number of answers dropped for lack of room here, if known. The network has not lost them.
    fn n_dropped_replies(&self) -> Option<u64>;
}

/// Room for the longest IP packet.
const ROOM: usize = 65_536;
/// The longest wait between two checks for a stop.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// The most probes in a row before answers are read: most reads find nothing.
const BURST: u32 = 8;
/// The most packets read in a row before the driver is asked again.
const READ_BURST: u32 = 64;

/// Runs a driver on a transport.
pub struct ProbeRunner<'a, L: ProbeTransport + ?Sized> {
    /// Writes probes and parses answers.
    pub template: &'a ProbeTemplate,
    pub transport: &'a mut L,
    /// Returns whether to stop.
    pub is_stopped: &'a dyn Fn() -> bool,
}

impl<L: ProbeTransport + ?Sized> ProbeRunner<'_, L> {
    /// Runs a driver to its end; returns whether it was stopped early.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn run(&mut self, driver: &mut dyn ProbeDriver) -> Result<bool, L::Error> {
        let (mut room, mut packet) = (vec![0; ROOM], Vec::new());
        let mut n_in_a_row = 0;
        loop {
            if n_in_a_row == 0 || n_in_a_row >= BURST {
                self.read(driver, &mut room)?;
                n_in_a_row = 0;
                if (self.is_stopped)() {
                    return Ok(true);
                }
            }
            let now = self.transport.now();
            match driver.step(now) {
                ProbeStep::Done => return Ok(false),
                ProbeStep::Wait(until) => {
                    n_in_a_row = 0;
                    self.transport.wait(until.min(now + POLL_INTERVAL))?;
                }
                ProbeStep::Send(order) => {
                    n_in_a_row += 1;
                    self.template.write(order, &mut packet);
                    match self.transport.send(&packet)? {
                        SendOutcome::Sent(at) => driver.on_event(&ProbeEvent::Sent(order), at),
                        SendOutcome::TooLong => driver.on_event(&ProbeEvent::TooLong(order), now),
                        SendOutcome::NoRoute(at) => driver.on_event(&ProbeEvent::NoRoute(order), at),
                        SendOutcome::WouldBlock => {
                            n_in_a_row = 0;
                            // A full queue drains within the time of a few packets.
                            self.transport.wait(now + Nanos::from_micros(100))?;
                        }
                    }
                }
            }
        }
    }

    fn read(&mut self, driver: &mut dyn ProbeDriver, room: &mut [u8]) -> Result<(), L::Error> {
        for _ in 0..READ_BURST {
            match self.transport.receive(room)? {
                None => return Ok(()),
                Some(CapturedPacket::Outgoing(length, at)) => {
                    if let (Some(tag), Some(at)) = (self.template.own_tag(&room[..length]), at) {
                        driver.on_event(&ProbeEvent::Transmitted { tag }, at);
                    }
                }
                Some(CapturedPacket::Incoming(length, at)) => {
                    if let Some(reply) = self.template.read(&room[..length]) {
                        driver.on_event(&ProbeEvent::Reply(&reply, &room[..length]), at);
                    }
                }
            }
        }
        Ok(())
    }
}
