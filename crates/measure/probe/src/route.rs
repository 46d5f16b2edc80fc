//! The routers on the way, by probes that may pass that many of them and no more.
//!
//! All probes are of one flow, so that they all take the same way. Several hops are asked at the same time, each several times.

use std::net::IpAddr;

use fathom_model::units::Nanos;

use super::{
    driver::{ProbeDriver, ProbeEvent, ProbeStep},
    reply::IcmpErrorKind,
    template::ProbeFields,
};

/// How a route is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteOptions {
    /// The most routers that are asked.
    pub hops_max: u8,
    /// How often each is asked.
    pub queries: u8,
    /// How long an answer may take.
    pub timeout: Nanos,
    /// From one probe to the next: routers limit how often they complain.
    pub gap: Nanos,
    /// From one question to a router to the next.
    pub pause: Nanos,
}

/// What one hop said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hop {
    /// Who answered: several when the way is not one.
    pub addresses: Vec<IpAddr>,
    /// How often it was asked.
    pub n_sent: u32,
    /// The round trips of its answers, in the order in which they came.
    pub rtts: Vec<Nanos>,
    /// Why it passed nothing on, unless the probe had simply come to its last hop.
    pub icmp_error: Option<IcmpErrorKind>,
    /// Whether this is the host that was looked for.
    pub is_target: bool,
}

#[derive(Debug, Clone, Copy)]
struct Query {
    hop: u8,
    sent: Nanos,
    is_answered: bool,
}

/// How many hops are asked before the first of them has answered.
const AHEAD: u8 = 6;
/// After that many silent hops in a row nothing more is expected.
const SILENT_MAX: u8 = 8;

/// A route on its way to be found.
#[derive(Debug)]
pub struct RouteTrace {
    options: RouteOptions,
    hops: Vec<Hop>,
    queries: Vec<Query>,
    /// The number of hops to be asked, as far as it is known.
    limit: u8,
    /// Which question, counted from 0, the hops are asked now.
    pass: u8,
    next_hop: u8,
    next_send: Nanos,
}

impl RouteTrace {
    /// Nothing is sent yet.
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

    /// The hops, nearest first, as far as any of them or the target answered.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        let known = usize::from(self.limit).min(self.hops.len());
        &self.hops[..known]
    }

    /// How many routers are between, and whether the target answered.
    #[must_use]
    pub fn reached(&self) -> Option<u8> {
        let at = self.hops().iter().position(|hop| hop.is_target)?;
        u8::try_from(at + 1).ok()
    }

    fn is_decided(&self, query: &Query, now: Nanos) -> bool {
        query.is_answered || now.since(query.sent) > self.options.timeout
    }

    /// When the first of the probes that are not decided will be; nothing when all are.
    fn next_timeout(&self, now: Nanos) -> Option<Nanos> {
        let open = self.queries.iter().filter(|query| !self.is_decided(query, now));
        open.map(|query| query.sent + self.options.timeout + Nanos(1)).min()
    }

    /// The nearest hop that may still answer its first question; those before it have, or will not.
    fn frontier(&self, now: Nanos) -> u8 {
        let open = self.queries.iter().find(|query| !self.is_decided(query, now));
        open.map_or(self.next_hop, |query| query.hop)
    }

    /// The farthest hop that answered.
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
            // The first answers say how far the others have to go.
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
            // A packet that does not fit into the own device goes nowhere.
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
