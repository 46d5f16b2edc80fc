//! Finds the longest packet that gets through, and where longer ones vanish silently.
//!
//! Several lengths are tried at once, each several times. The MTUs that routers report (RFC 1191, RFC 8201) are tried first and
//! always verified. If routers report nothing, the search continues without them (RFC 4821).

use std::{collections::BTreeMap, net::IpAddr};

use fathom_model::units::Nanos;

use super::{
    driver::{ProbeDriver, ProbeEvent, ProbeStep},
    reply::IcmpErrorKind,
    template::ProbeFields,
};

/// The range of lengths, and the patience of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathMtuOptions {
    /// A length that must get through for a result.
    pub floor: u16,
    /// The longest packet of the local device.
    pub ceiling: u16,
    /// How often a length is tried before it counts as lost.
    pub tries: u8,
    /// How long an answer may take.
    pub timeout: Nanos,
    /// The gap between two probes.
    pub gap: Nanos,
    /// Whether the target limits its answers.
    pub reply_limit: ReplyLimit,
}

/// How freely the target answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyLimit {
    /// It answers every probe. Several lengths are tried at the same time.
    #[default]
    Free,
    /// It answers with ICMP errors, which hosts limit. Lengths are tried one at a time.
    RateLimited,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMtuResult {
    /// The longest packet that was answered; `None` if none was.
    pub mtu: Option<u16>,
    /// The routers that reported too long packets, with the MTU in their messages; the smallest if a router reported several.
    pub reported: BTreeMap<IpAddr, u32>,
    /// The shortest packet that vanished although no router had reported its length as too long.
    pub black_hole_from: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
struct LengthTrial {
    length: u16,
    sent: Nanos,
    is_answered: bool,
    is_reported: bool,
}

/// The number of lengths tried at the same time. This finds 1,500 bytes in four rounds.
const LENGTHS: u16 = 8;

#[derive(Debug)]
pub struct PathMtuSearch {
    options: PathMtuOptions,
    trials: Vec<LengthTrial>,
    /// The index of the first trial of this round.
    round: usize,
    /// Lengths still to be sent in this round.
    queue: Vec<u16>,
    good: Option<u16>,
    /// The shortest length above the good ones that did not get through.
    bad: u32,
    reported: BTreeMap<IpAddr, u32>,
    too_long_here: Option<u16>,
    next_send: Nanos,
    /// Whether lost lengths are sent once more, together with short packets that show whether the target still answers.
    is_confirming: bool,
    /// Trials before this index do not count as losses, because a length lost there got through later.
    confirmed_from: usize,
    /// Whether the target has stopped answering.
    has_fallen_silent: bool,
}

impl PathMtuSearch {
    /// Starts a search without any trial.
    #[must_use]
    pub fn new(range: PathMtuOptions) -> Self {
        let mut queue = vec![range.floor; range.tries.into()];
        queue.extend(std::iter::repeat_n(range.ceiling, range.tries.into()));
        Self {
            options: range,
            trials: Vec::new(),
            round: 0,
            queue,
            good: None,
            bad: u32::from(range.ceiling) + 1,
            reported: BTreeMap::new(),
            too_long_here: None,
            next_send: Nanos::ZERO,
            is_confirming: false,
            confirmed_from: 0,
            has_fallen_silent: false,
        }
    }

    /// Returns the result so far. A target that answers only intermittently has no MTU.
    #[must_use]
    pub fn result(&self) -> PathMtuResult {
        if self.has_fallen_silent {
            return PathMtuResult { mtu: None, reported: self.reported.clone(), black_hole_from: None };
        }
        let told = self.reported.values().copied().filter(|mtu| *mtu > 0).min();
        let is_explained = |length: u32| {
            told.is_some_and(|mtu| length > mtu)
                || self.reported.values().any(|mtu| *mtu == 0)
                || self.too_long_here.is_some_and(|here| length >= u32::from(here))
        };
        let is_beyond = self.bad > u32::from(self.options.ceiling);
        let vanishing = Some(self.bad).filter(|bad| self.good.is_some() && !is_beyond && !is_explained(*bad));
        let vanishing_from = vanishing.and_then(|bad| u16::try_from(bad).ok());
        PathMtuResult { mtu: self.good, reported: self.reported.clone(), black_hole_from: vanishing_from }
    }

    fn is_decided(&self, trial: &LengthTrial, now: Nanos) -> bool {
        trial.is_answered || trial.is_reported || now.since(trial.sent) > self.options.timeout
    }

    /// Evaluates a round.
    fn finish_round(&mut self) {
        let round = &self.trials[self.round..];
        self.has_fallen_silent = self.is_confirming && !round.iter().any(|trial| trial.is_answered);
        let answered = self.trials.iter().filter(|trial| trial.is_answered).map(|trial| trial.length).max();
        self.good = answered;
        let good = answered.unwrap_or(0);
        if self.is_confirming && u32::from(good) >= self.bad {
            self.is_confirming = false;
            self.confirmed_from = self.trials.len();
        }
        let failed =
            self.trials[self.confirmed_from..].iter().map(|trial| trial.length).filter(|length| *length > good).min();
        let here = self.too_long_here.filter(|here| *here > good);
        let beyond = u32::from(self.options.ceiling) + 1;
        self.bad = failed.into_iter().chain(here).min().map_or(beyond, u32::from);
    }

    /// Returns the lengths of the next round; empty if the search is complete.
    fn next_lengths(&self) -> Vec<u16> {
        let Some(good) = self.good else { return Vec::new() };
        let between = self.bad - u32::from(good) - 1;
        if between == 0 {
            return Vec::new();
        }
        let told = self.reported.values().filter_map(|mtu| u16::try_from(*mtu).ok());
        let within = |length: &u16| *length > good && u32::from(*length) < self.bad;
        // A reported MTU and the next longer length. If the report is true, they settle the search in one round.
        let mut lengths: Vec<u16> = told.flat_map(|mtu| [mtu, mtu.saturating_add(1)]).filter(within).collect();
        if lengths.is_empty() {
            let n = match self.options.reply_limit {
                ReplyLimit::Free => u32::from(LENGTHS).min(between),
                ReplyLimit::RateLimited => 1,
            };
            let spread = |nth: u32| {
                let offset = if n == 1 { between.div_ceil(2) } else { between * nth / n };
                good + u16::try_from(offset).expect("it is at most the distance between two lengths")
            };
            lengths = (1..=n).map(spread).filter(within).collect();
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }
}

impl ProbeDriver for PathMtuSearch {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if self.queue.is_empty() {
            let open = self.trials[self.round..].iter().filter(|trial| !self.is_decided(trial, now));
            // One answer is enough for several tries of a length.
            let is_known = |trial: &&LengthTrial| {
                self.trials[self.round..].iter().any(|other| other.length == trial.length && other.is_answered)
            };
            if let Some(trial) = open.filter(|trial| !is_known(trial)).min_by_key(|trial| trial.sent) {
                return ProbeStep::Wait(trial.sent + self.options.timeout + Nanos(1));
            }
            self.finish_round();
            self.round = self.trials.len();
            let tries = usize::from(self.options.tries);
            let mut lengths = self.next_lengths();
            let vanishing = self.result().black_hole_from.filter(|_| lengths.is_empty() && !self.is_confirming);
            if let Some(vanishing) = vanishing {
                self.is_confirming = true;
                lengths = vec![self.options.floor, vanishing];
            }
            self.queue = lengths.into_iter().flat_map(|length| std::iter::repeat_n(length, tries)).collect();
        }
        let round = &self.trials[self.round..];
        self.queue.retain(|length| !round.iter().any(|trial| trial.length == *length && trial.is_answered));
        let Some(length) = self.queue.first().copied() else {
            // Nothing new was to be sent, or all of it was already answered.
            return if self.round == self.trials.len() { ProbeStep::Done } else { self.step(now) };
        };
        if now < self.next_send {
            return ProbeStep::Wait(self.next_send);
        }
        let tag = u16::try_from(self.trials.len()).expect("a search takes fewer probes than there are tags");
        ProbeStep::Send(ProbeFields { tag, length: Some(length), ..ProbeFields::default() })
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        match event {
            ProbeEvent::Sent(order) | ProbeEvent::NoRoute(order) => {
                let length = order.length.unwrap_or(0);
                self.queue.remove(0);
                self.trials.push(LengthTrial { length, sent: at, is_answered: false, is_reported: false });
                self.next_send = at + self.options.gap;
            }
            ProbeEvent::TooLong(order) => {
                let length = order.length.unwrap_or(0);
                self.queue.retain(|queued| *queued < length);
                self.too_long_here = Some(self.too_long_here.map_or(length, |here| here.min(length)));
            }
            ProbeEvent::Transmitted { tag } => {
                if let Some(trial) = self.trials.get_mut(usize::from(*tag)).filter(|trial| !trial.is_answered) {
                    trial.sent = at;
                }
            }
            ProbeEvent::Reply(reply, _) => {
                if let Some(IcmpErrorKind::TooBig(mtu)) = reply.icmp_error_kind() {
                    let least = self.reported.entry(reply.from).or_insert(mtu);
                    *least = mtu.min(*least);
                }
                let Some(trial) = reply.tag.and_then(|tag| self.trials.get_mut(usize::from(tag))) else { return };
                if reply.is_from_target {
                    trial.is_answered = true;
                } else {
                    trial.is_reported = true;
                }
            }
        }
    }
}
