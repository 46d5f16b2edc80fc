//! A scenario as it is run: a flat list of operations, the steps they ask, and what all workers share.

use std::sync::{Arc, atomic::AtomicU64};

use fathom_http::{
    dial::Rota,
    url::{Scheme, Url},
    users::{Framing, Wants},
};
use fathom_model::units::Nanos;

use super::{
    jar::Whereto,
    look::{Condition, Expectation, Take},
    meeting::Meeting,
    request::Request,
    rows::{Dealer, Rows},
    tally::StepName,
    text::Text,
};
use crate::scenario::tree::Way;

/// A place in the list of operations.
pub(crate) type Pc = u32;

/// One thing that a user does. Places of jumps are absolute.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Sends the request of a step, and goes on when its answer is there.
    Ask(u16),
    Rest(Wait),
    Meet(u16),
    Set {
        slot: u16,
        text: Text,
    },
    /// A loop begins, with so many rounds; none leads to `exit`.
    Enter {
        least: u64,
        most: u64,
        exit: Pc,
    },
    /// The end of a round: back to `begin`, not before its pace allows it, until the rounds are over.
    Again {
        begin: Pc,
        pace: Option<Wait>,
    },
    /// The loop is over.
    Exit,
    Unless {
        condition: Condition,
        to: Pc,
    },
    /// Goes on with a probability, else jumps.
    Perhaps {
        share: f64,
        to: Pc,
    },
    Jump(Pc),
    Call(Pc),
    Return,
    Begin(u16),
    End,
    /// An iteration begins: new rows, a new number.
    Iterate,
    /// It is over: back to its begin, or on to what is done before leaving.
    Iterated {
        pace: Option<Wait>,
    },
    /// What is done before leaving begins.
    Teardown,
    Leave,
}

/// How long something takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wait {
    Fixed(Nanos),
    /// Both ends included.
    Uniform(Nanos, Nanos),
    /// By its mean.
    Exponential(Nanos),
    /// By mean and standard deviation, never below zero.
    Normal(Nanos, Nanos),
}

impl Wait {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a random time is rounded, and a float becomes the nearest number there is"
    )]
    pub(crate) fn draw(self, chance: &mut fastrand::Rng) -> Nanos {
        match self {
            Self::Fixed(time) => time,
            Self::Uniform(low, high) => Nanos(chance.u64(low.0.min(high.0)..=high.0.max(low.0))),
            Self::Exponential(mean) => Nanos((-(1.0 - chance.f64()).ln() * mean.0 as f64) as u64),
            // The transform of Box and Muller (1958).
            Self::Normal(mean, deviation) => {
                let radius = (-2.0 * (1.0 - chance.f64()).ln()).sqrt();
                let turn = (std::f64::consts::TAU * chance.f64()).cos();
                Nanos((mean.0 as f64 + radius * turn * deviation.0 as f64).max(0.0) as u64)
            }
        }
    }
}

/// A request with what becomes of its answer. Each worker has clones of its own.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) request: Request,
    pub(crate) server: u16,
    pub(crate) framing: Framing,
    pub(crate) wants: Wants,
    pub(crate) timeout: Option<Nanos>,
    /// The variables in its request.
    pub(crate) needs: Box<[u16]>,
    /// The target, when its beginning is only known then.
    pub(crate) opening: Option<Text>,
    /// The most redirects that are followed.
    pub(crate) redirects: u16,
    pub(crate) expectations: Vec<Expectation>,
    pub(crate) takes: Vec<Take>,
    /// Whether one of these looks at the body.
    pub(crate) reads_body: bool,
    pub(crate) on_failure: Option<Way>,
    /// Its place among the names of records.
    pub(crate) record: u16,
    /// Of a transaction in which it failed.
    pub(crate) failed: String,
}

/// A kind of user.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) begin: Pc,
    pub(crate) iterate: Pc,
    pub(crate) teardown: Pc,
    pub(crate) leave: Pc,
    pub(crate) on_failure: Way,
    /// The data sets that it uses.
    pub(crate) sets: Vec<u16>,
}

/// A server as requests and cookies name it.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) url: Url,
    /// In lower case.
    pub(crate) host: String,
}

impl Server {
    pub(crate) fn new(url: Url) -> Self {
        Self { host: url.host.to_ascii_lowercase(), url }
    }

    /// Whether a URL leads to it.
    pub(crate) fn is_of(&self, url: &Url) -> bool {
        (self.url.scheme, self.url.port) == (url.scheme, url.port) && self.host.eq_ignore_ascii_case(&url.host)
    }

    pub(crate) fn whereto<'a>(&'a self, target: &'a [u8]) -> Whereto<'a> {
        Whereto { host: &self.host, target, is_secure: self.url.scheme == Scheme::Https }
    }
}

/// A data set with those who have a share in it.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) dealer: Dealer,
    /// Columns that nobody else may see, by their name.
    pub(crate) secrets: Vec<usize>,
}

/// What all workers share: nothing of it changes but counters.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    pub(crate) steps: Vec<Step>,
    pub(crate) names: Vec<StepName>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) rota: Rota,
    pub(crate) servers: Vec<Server>,
    pub(crate) rows: Vec<Arc<Rows>>,
    pub(crate) sets: Vec<Set>,
    pub(crate) counters: Vec<AtomicU64>,
    pub(crate) meetings: Vec<Meeting>,
    pub(crate) slot_names: Vec<String>,
    /// Slots that nobody else may see, by their name.
    pub(crate) secret_slots: Vec<usize>,
    pub(crate) has_cookies: bool,
    pub(crate) promises: Vec<String>,
}
