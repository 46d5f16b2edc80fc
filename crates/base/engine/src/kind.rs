//! What a layer can run.

use fathom_model::{Endpoints, Layer, Metric, OptionDoc, Record, Role};
use fathom_sys::policy::{AllowedPeers, Policy};

use crate::{CeilingSetup, CommandDoc, Error, EvaluationRow, TrialContext};

/// A kind of test: one row in its crate's table `KINDS`.
pub trait TestKind: Sync {
    /// The name in plans: `tcp_stream`.
    fn name(&self) -> &'static str;

    /// What it measures, in a line for the help; begins in lower case, ends without a full stop.
    fn about(&self) -> &'static str;

    /// The layer it belongs to.
    fn layer(&self) -> Layer;

    /// Whether a responder of ours must be at the other end.
    fn is_two_sided(&self, settings: &fathom_model::Settings) -> bool;

    /// A title for tables from complete settings: `stream, 8 flows`.
    fn title(&self, settings: &fathom_model::Settings) -> String;

    /// Its options: parsing, help and man page come from this.
    fn options(&self) -> &'static [OptionDoc];

    /// What it measures, the most important first: reports, plots and gates come from this.
    fn metrics(&self) -> &'static [Metric];

    /// What cannot be of complete settings, beyond what each option alone may be: told before anything is touched.
    ///
    /// # Errors
    /// Names the option.
    fn check(&self, _settings: &fathom_model::Settings) -> Result<(), Error> {
        Ok(())
    }

    /// All that a test with these settings sends to beyond the hosts of its plan, whatever options name it.
    ///
    /// The program asks it before anything is touched, and so does the agent of a served host. What is sent to is judged again by the
    /// policy where it is opened.
    ///
    /// # Errors
    /// Names the option that names no target.
    fn destinations(&self, _settings: &fathom_model::Settings) -> Result<Vec<NamedTarget>, Error> {
        Ok(Vec::new())
    }

    /// Whether it makes rules or fills sockets where it runs, which is nobody's business on a machine that has other work.
    fn is_for_labs_only(&self) -> bool {
        false
    }

    /// Where the kind stands on the command line; nothing for a kind that has a command of its own.
    fn command(&self) -> Option<CommandDoc> {
        None
    }

    /// Its rows in an evaluation.
    fn evaluation(&self) -> &'static [EvaluationRow] {
        &[]
    }

    /// How the tool's own ceiling is measured; nothing for a kind without one.
    fn ceiling(&self) -> Option<CeilingSetup> {
        None
    }

    /// Whether the benchmarking methods of RFC 2544 and its successors can use it for their trials.
    fn serves_methods(&self) -> bool {
        false
    }

    /// Makes everything ready: sockets open, buffers filled, endpoints known. Nothing is sent before the start.
    ///
    /// Whatever it opens for the role is judged by the policy.
    ///
    /// # Errors
    /// Says what is missing; nothing is left behind then.
    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error>;
}

/// A place that a test sends to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTarget {
    /// A name or an address; a network too with [`Consent::WholeNetwork`].
    pub host: String,
    /// Where a connection shows before the test that something listens; absent where none may be made.
    pub port: Option<u16>,
    /// Who has to agree.
    pub consent: Consent,
}

/// Who has to agree to what is sent to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// The user's allow-list.
    AllowList,
    /// The user's allow-list, except in a lab, which nothing leaves.
    AllowListOutsideLabs,
    /// Nobody outside a lab beyond the host that is named: it is one host, and packets come at ping's pace.
    SingleHostOutsideLabs,
    /// The server itself, by answering its protocol; it is one host.
    Server,
    /// The user's allow-list, for the network as a whole.
    WholeNetwork,
}

/// Who may come to the sockets of a role: the other side, from wherever the role's options let it send.
#[must_use]
pub fn guests(role: &Role, policy: &Policy) -> AllowedPeers {
    policy.guests(&role.meeting.with, role.settings.text("source").as_deref())
}

/// One side of a trial, ready to start.
pub trait Test: Send {
    /// What the other side needs to know; empty for an initiator.
    fn endpoints(&self) -> Endpoints;

    /// Waits for the start, runs, and says what happened.
    ///
    /// # Errors
    /// Only when nothing can be recorded: what was measured before a loss is returned as an incomplete record.
    fn run(self: Box<Self>, session: &TrialContext) -> Result<Record, Error>;
}

/// The kind of this name.
///
/// # Errors
/// Lists the names there are.
pub fn find<'a>(kinds: &'a [&'static dyn TestKind], name: &str) -> Result<&'a &'static dyn TestKind, Error> {
    kinds.iter().find(|kind| kind.name() == name).ok_or_else(|| Error::UnknownKind {
        name: name.to_owned(),
        known: kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", "),
    })
}
