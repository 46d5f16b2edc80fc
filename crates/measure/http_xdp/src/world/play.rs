//! Plays a load in a world until as many answers have arrived as were wanted, then stops it.

use super::{
    MS, Packet,
    channel::{LossyChannel, Side, Weather},
    frames::AnswerTexts,
    server::{LinuxServer, Manners},
    slot::{Answerer, Reply, SCAN, UserSpace},
};
use crate::machine::{Conditions, Connection, Event, Rules, State, Timers, flag};

/// All that a play depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) seed: u64,
    pub(super) weather: Weather,
    pub(super) manners: Manners,
    pub(super) rules: Rules,
    /// So many answers are wanted.
    pub(super) n_wanted: u64,
    /// The time between the requests of an open load.
    pub(super) interval: u64,
}

/// What both sides counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Books {
    /// Requests that began.
    pub(super) n_requests: u64,
    /// Answers that the server wrote.
    pub(super) n_served: u64,
    /// The client's counts.
    pub(super) counts: [u64; Event::ALL.len()],
    /// Nanoseconds from the start to the end.
    pub(super) elapsed: u64,
}

impl Books {
    pub(super) fn n(&self, event: Event) -> u64 {
        self.counts[event as usize]
    }
}

/// The longest wait for an answer, in nanoseconds.
pub(super) const TIMEOUT: u64 = 20_000 * MS;
/// A play that takes longer is stuck.
const LIMIT: u64 = 1_000_000 * MS;

struct World<'a, A> {
    script: &'a Script,
    now: u64,
    stops: bool,
    answerer: &'a mut A,
    user_space: UserSpace,
    server: LinuxServer,
    texts: AnswerTexts,
    channel: LossyChannel,
    next_look: u64,
    next_due: u64,
    n_requests: u64,
}

/// Plays a script.
///
/// # Errors
/// With what is wrong, as text.
pub(super) fn play(script: &Script, answerer: &mut impl Answerer) -> Result<Books, String> {
    let mut random = fastrand::Rng::with_seed(script.seed);
    let start = (1 << 30) + random.u64(..1 << 40);
    let mut world = World {
        script,
        now: start,
        stops: false,
        answerer,
        user_space: UserSpace::new(Timers::new(TIMEOUT)),
        server: LinuxServer::new(script.manners, random.fork()),
        texts: AnswerTexts::of(&script.manners),
        channel: LossyChannel::new(script.weather, random.fork()),
        next_look: start,
        next_due: if script.rules.is_open_load { start } else { u64::MAX },
        n_requests: 0,
    };
    while !world.has_ended() {
        if world.now > start + LIMIT {
            return Err(format!("stuck as {:?}", world.answerer.row()));
        }
        world.advance()?;
    }
    let counts = Event::ALL.map(|event| world.answerer.n(event) + world.user_space.n(event));
    let (n_requests, n_served) = (world.n_requests, world.server.n_answers);
    Ok(Books { n_requests, n_served, counts, elapsed: world.now - start })
}

impl<A: Answerer> World<'_, A> {
    fn has_ended(&mut self) -> bool {
        self.stops |= self.n_answered() >= self.script.n_wanted;
        self.stops && self.answerer.row().state == State::Closed
    }

    fn n_answered(&self) -> u64 {
        self.answerer.n(Event::Answered) + self.user_space.n(Event::Answered)
    }

    fn at(&self) -> Conditions {
        Conditions { now: self.now, stops: self.stops, rules: self.script.rules }
    }

    /// Goes on to what happens next.
    fn advance(&mut self) -> Result<(), String> {
        let arrival = self.channel.next_at().unwrap_or(u64::MAX);
        let timer = self.server.next_at().unwrap_or(u64::MAX);
        let next = arrival.min(timer).min(self.next_look).min(self.next_due);
        self.now = self.now.max(next);
        if next == arrival {
            let (to, packet) = self.channel.take().expect("a packet arrives");
            match to {
                Side::Client => self.at_client(&packet)?,
                Side::Server => self.at_server(Some(&packet)),
            }
        } else if next == timer {
            self.at_server(None);
        } else if next == self.next_look {
            self.next_look += SCAN;
            let (at, before) = (self.at(), self.answerer.row());
            let packet = self.user_space.look(self.answerer, &at);
            self.send(&before, packet);
        } else {
            self.next_due += self.script.interval;
            self.user_space.due.push_back(self.now);
        }
        Ok(())
    }

    fn at_server(&mut self, packet: Option<&Packet>) {
        let mut out = Vec::new();
        match packet {
            Some(packet) => self.server.on_packet(packet, self.now, &mut out),
            None => self.server.on_time(self.now, &mut out),
        }
        for packet in out {
            self.channel.send(Side::Client, packet, self.now);
        }
    }

    fn at_client(&mut self, packet: &Packet) -> Result<(), String> {
        let (before, n_before) = (self.answerer.row(), self.n_answered());
        let at = self.at();
        let payload = self.texts.payload(packet);
        let sent = match self.answerer.answer(packet, payload, &at) {
            Reply::Sent(packet) => packet,
            Reply::HandedOver => self.user_space.follow(self.answerer, packet, payload, &at),
        };
        if self.n_answered() > n_before {
            // Of all that was written, the answer that ends here is counted, and never again.
            let segment = packet.segment;
            let end = segment.sequence.wrapping_add(segment.length);
            let early_end = if before.early_from == before.early_to { end } else { before.early_to };
            let ends = [end, early_end].map(|end| (packet.port_idx, end));
            if !ends.iter().any(|end| self.server.answers.remove(end)) {
                return Err(format!("{packet:?} ends no answer at {before:?}"));
            }
        }
        self.send(&before, sent);
        Ok(())
    }

    /// Sends what was made of a row, which was like this before.
    fn send(&mut self, before: &Connection, packet: Option<Packet>) {
        let Some(packet) = packet else { return };
        self.n_requests += u64::from(packet.has(flag::PSH) && self.answerer.row().send_next != before.send_next);
        self.channel.send(Side::Server, packet, self.now);
    }
}
