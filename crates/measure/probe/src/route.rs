//! Traces the routers on a path, with probes of increasing hop limits.
//!
//! All probes belong to one flow, so that they all take the same path. Several hops are probed at the same time, each several
//! times.

use std::net::IpAddr;

use fathom_model::units::Nanos;

use super::{
    driver::{ProbeDriver, ProbeEvent, ProbeStep},
    reply::IcmpErrorKind,
    template::ProbeFields,
};

/// The parameters of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteOptions {
    /// The most hops.
    pub hops_max: u8,
    /// The number of queries per hop.
    pub queries: u8,
    /// How long an answer may take.
    pub timeout: Nanos,
    /// The gap between two probes: routers limit their ICMP errors.
    pub gap: Nanos,
    /// The pause between two passes over the hops.
    pub pause: Nanos,
}

/// The result of one hop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hop {
    /// The addresses that answered; several if there are several paths.
    pub addresses: Vec<IpAddr>,
    /// The number of queries.
    pub n_sent: u32,
    /// The round trips of its answers, in order of arrival.
    pub rtts: Vec<Nanos>,
    /// The ICMP error that it returned, unless that was an exceeded hop limit.
    pub icmp_error: Option<IcmpErrorKind>,
    /// Whether this is the destination.
    pub is_target: bool,
}

#[derive(Debug, Clone, Copy)]
struct Query {
    hop: u8,
    sent: Nanos,
    is_answered: bool,
}

/// How many hops are probed before the first of them has answered.
const AHEAD: u8 = 6;
/// The number of silent hops in a row after which the trace gives up.
const SILENT_MAX: u8 = 8;

/// A trace in progress.
#[derive(Debug)]
pub struct RouteTrace {
    options: RouteOptions,
    hops: Vec<Hop>,
    queries: Vec<Query>,
    /// The number of hops to probe, as far as it is known.
    limit: u8,
    /// The current pass over the hops, from 0.
    pass: u8,
    next_hop: u8,
    next_send: Nanos,
}

impl RouteTrace {
    /// Starts a trace without any query.
    #[must_use]
    pub fn new(search: RouteOptions) -> Self {
        Self {
            options: search,
            hops: vec![Hop::default(); search.hops_max.into()],
            queries: Vec::new(),
            limit: search.hops_max,
            pass: 0,
            next_hop: 1,
            next_send: Nanos::ZERO,
        }
    }

    /// Returns the hops, nearest first, up to the last one that is known.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        let known = usize::from(self.limit).min(self.hops.len());
        &self.hops[..known]
    }

    /// Returns the distance to the target in hops; `None` if it did not answer.
    #[must_use]
    pub fn reached(&self) -> Option<u8> {
        let at = self.hops().iter().position(|hop| hop.is_target)?;
        u8::try_from(at + 1).ok()
    }

    fn is_decided(&self, query: &Query, now: Nanos) -> bool {
        query.is_answered || now.since(query.sent) > self.options.timeout
    }

    /// Returns when the first open query times out; `None` if there is none.
    fn next_timeout(&self, now: Nanos) -> Option<Nanos> {
        let open = self.queries.iter().filter(|query| !self.is_decided(query, now));
        open.map(|query| query.sent + self.options.timeout + Nanos(1)).min()
    }

    /// Returns the nearest hop with an open query. All hops before it have answered or timed out.
    fn frontier(&self, now: Nanos) -> u8 {
        let open = self.queries.iter().find(|query| !self.is_decided(query, now));
        open.map_or(self.next_hop, |query| query.hop)
    }

    /// Returns the farthest hop that answered.
    fn last_answered(&self) -> u8 {
        let heard = self.hops.iter().rposition(|hop| !hop.addresses.is_empty());
        heard.map_or(0, |at| u8::try_from(at + 1).unwrap_or(u8::MAX))
    }

    fn on_reply(&mut self, reply: &super::reply::Reply, at: Nanos) {
        let unanswered = || self.queries.iter().position(|query| !query.is_answered);
        let Some(idx) = reply.tag.map(usize::from).or_else(unanswered) else { return };
        let Some(query) = self.queries.get_mut(idx).filter(|query| !query.is_answered) else { return };
        query.is_answered = true;
        let (hop_number, rtt) = (query.hop, at.since(query.sent));
        let hop = &mut self.hops[usize::from(hop_number) - 1];
        if !hop.addresses.contains(&reply.from) {
            hop.addresses.push(reply.from);
        }
        hop.rtts.push(rtt);
        let is_passing = reply.icmp_error_kind() == Some(IcmpErrorKind::HopsExceeded);
        if !is_passing {
            hop.is_target |= reply.is_from_target;
            if !reply.is_from_target {
                hop.icmp_error = reply.icmp_error_kind();
            }
            self.limit = self.limit.min(hop_number);
        }
    }

    fn next_probe(&self) -> ProbeFields {
        let tag = u16::try_from(self.queries.len()).expect("255 hops asked 100 times are fewer than tags");
        ProbeFields { tag, hops: Some(self.next_hop), ..ProbeFields::default() }
    }
}

impl ProbeDriver for RouteTrace {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        let silent = self.frontier(now).saturating_sub(self.last_answered() + 1);
        if self.pass == 0 && silent >= SILENT_MAX {
            self.limit = self.limit.min(self.last_answered() + 1);
        }
        let all_decided = self.next_timeout(now).is_none();
        let overdue = self.next_timeout(now).unwrap_or(now);
        if self.next_hop > self.limit {
            // The answers of the first pass determine how many hops the later passes need.
            if self.pass == 0 && !all_decided {
                return ProbeStep::Wait(overdue);
            }
            if self.pass + 1 >= self.options.queries {
                return if all_decided { ProbeStep::Done } else { ProbeStep::Wait(overdue) };
            }
            self.pass += 1;
            self.next_hop = 1;
            self.next_send = self.next_send.max(now) + self.options.pause;
        }
        if self.pass == 0 && self.next_hop >= self.frontier(now) + AHEAD {
            return ProbeStep::Wait(overdue);
        }
        if now < self.next_send {
            return ProbeStep::Wait(self.next_send);
        }
        ProbeStep::Send(self.next_probe())
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        match event {
            ProbeEvent::Sent(_) | ProbeEvent::NoRoute(_) => {
                self.queries.push(Query { hop: self.next_hop, sent: at, is_answered: false });
                self.hops[usize::from(self.next_hop) - 1].n_sent += 1;
                self.next_hop += 1;
                self.next_send = at + self.options.gap;
            }
            // A packet that is too long for the local device goes nowhere.
            ProbeEvent::TooLong(_) => self.limit = self.limit.min(self.next_hop - 1),
            ProbeEvent::Transmitted { tag } => {
                if let Some(query) = self.queries.get_mut(usize::from(*tag)).filter(|query| !query.is_answered) {
                    query.sent = at;
                }
            }
            ProbeEvent::Reply(reply, _) => self.on_reply(reply, at),
        }
    }
}
