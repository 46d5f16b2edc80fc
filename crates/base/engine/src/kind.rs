//! The interface of a test kind.

use fathom_model::{Endpoints, Layer, Metric, OptionDoc, Record, Role, benchmark::TrafficUnit, units::Bytes};
use fathom_sys::policy::{AllowedPeers, Policy};

use crate::{CeilingSetup, CommandDoc, Error, EvaluationRow, TrialContext};

/// A kind of test: one row in the table `KINDS` of its crate.
pub trait TestKind: Sync {
    /// The name used in plans, such as `tcp_stream`.
    fn name(&self) -> &'static str;

    /// One line for the help about what the test measures. It starts in lower case and has no full stop.
    fn about(&self) -> &'static str;

    /// The layer it belongs to.
    fn layer(&self) -> Layer;

    /// Whether the test needs a fathom responder at the other end.
    fn is_two_sided(&self, settings: &fathom_model::Settings) -> bool;

    /// The title for tables, built from complete settings, such as `stream, 8 flows`.
    fn title(&self, settings: &fathom_model::Settings) -> String;

    /// The options of the kind. Parsing, help and man page use this list.
    fn options(&self) -> &'static [OptionDoc];

    /// Those of its options that only a fathom responder has: a server that a test names by its address does not.
    fn responder_options(&self) -> &'static [OptionDoc] {
        &[]
    }

    /// The metrics, most important first. Reports, plots and gates use this list.
    fn metrics(&self) -> &'static [Metric];

    /// The name of the metric that a test with these settings is about, if that is not the first one. It is what a reader sees first.
    fn headline(&self, _settings: &fathom_model::Settings) -> Option<&'static str> {
        None
    }

    /// Rejects combinations of options that are invalid although each option alone is valid. Runs before anything is touched.
    ///
    /// # Errors
    /// Names the option.
    fn check(&self, _settings: &fathom_model::Settings) -> Result<(), Error> {
        Ok(())
    }

    /// Lists every target that a test with these settings sends to, besides the hosts of its plan.
    ///
    /// The program checks this list before anything is touched, and so does the agent of a served host. The policy checks each target again
    /// when its socket is opened.
    ///
    /// # Errors
    /// Names the option whose value is not a target.
    fn destinations(&self, _settings: &fathom_model::Settings) -> Result<Vec<NamedTarget>, Error> {
        Ok(Vec::new())
    }

    /// Whether a test with these settings ends when its work is done, so that the time of a trial is no more than a bound.
    fn ends_with_its_work(&self, _settings: &fathom_model::Settings) -> bool {
        false
    }

    /// The sides that take the device of their host for themselves, so that two pairs of hosts cannot share it.
    fn device_owners(&self, _settings: &fathom_model::Settings) -> &'static [fathom_model::Side] {
        &[]
    }

    /// True for tests that change firewall rules or fill socket buffers of their host; these run only in a lab.
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

    /// How the tool's own ceilings are measured, one for each unit of work; nothing for a kind without any.
    fn ceilings(&self) -> &'static [CeilingSetup] {
        &[]
    }

    /// The benchmarking methods of RFC 2544 and its successors that can use it for their trials; nothing for a kind that serves none.
    fn methods(&self) -> Option<MethodSupport> {
        None
    }

    /// Makes everything ready: sockets open, buffers filled, endpoints known. Nothing is sent before the start.
    ///
    /// The policy checks everything that is opened for the role.
    ///
    /// # Errors
    /// Says what is missing. Nothing is left behind in that case.
    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error>;
}

/// How a kind serves benchmarking methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodSupport {
    /// The names of the methods; any method if empty.
    pub only: &'static [&'static str],
    /// What a trial counts.
    pub unit: TrafficUnit,
    /// The option that sets the rate of a trial, in units per second.
    pub rate: &'static str,
    /// The sizes of a benchmark that names none, in bytes, as values of the option `size`.
    pub sizes: &'static [u64],
    /// The bytes that a frame adds to the value of the option `size`, with IPv4.
    pub frame_overhead: Bytes,
}

/// A target that a test sends to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTarget {
    /// A name or an address; with [`Consent::WholeNetwork`] also a network.
    pub host: String,
    /// The port for checking with a connection, before the test, that the target listens; absent if no connection may be made.
    pub port: Option<u16>,
    /// The party that has to agree.
    pub consent: Consent,
}

impl NamedTarget {
    /// Returns the target of a test from so many hosts at once; of 0 or 1, the same. Several hosts send more than one user of ping does.
    #[must_use]
    pub fn from_hosts(self, n_hosts: usize) -> Self {
        match self.consent {
            Consent::SingleHostOutsideLabs if n_hosts > 1 => Self { consent: Consent::AllowListOutsideLabs, ..self },
            _ => self,
        }
    }
}

/// The party that has to agree before a test sends to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// The user's allow-list.
    AllowList,
    /// The user's allow-list, except in a lab, because no packet leaves a lab.
    AllowListOutsideLabs,
    /// Outside a lab, nobody has to agree if the target is the single named host, because packets are sent at the rate of ping.
    SingleHostOutsideLabs,
    /// The server itself, by answering its protocol. The target is a single host.
    Server,
    /// The user's allow-list, which must cover the network as a whole.
    WholeNetwork,
}

/// Returns the peers that may connect to the sockets of a role: the other side, from any source address that the role's options allow.
#[must_use]
pub fn guests(role: &Role, policy: &Policy) -> AllowedPeers {
    policy.guests(&role.meeting.with, role.settings.text("source").as_deref())
}

/// One side of a trial, ready to start.
pub trait Test: Send {
    /// The information that the other side needs; empty for an initiator.
    fn endpoints(&self) -> Endpoints;

    /// Waits for the start, runs the test and returns the record.
    ///
    /// # Errors
    /// Only if nothing can be recorded. Data measured before a failure is returned as an incomplete record.
    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error>;
}

/// Finds the test kind with this name.
///
/// # Errors
/// Lists the known names.
pub fn find<'a>(kinds: &'a [&'static dyn TestKind], name: &str) -> Result<&'a &'static dyn TestKind, Error> {
    kinds.iter().find(|kind| kind.name() == name).ok_or_else(|| Error::UnknownKind {
        name: name.to_owned(),
        known: kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_that_probe_one_outside_labs_need_the_allow_list() {
        let consent = |consent, n_hosts| {
            let target = NamedTarget { host: "192.0.2.7".to_owned(), port: None, consent };
            target.from_hosts(n_hosts).consent
        };
        assert_eq!(consent(Consent::SingleHostOutsideLabs, 0), Consent::SingleHostOutsideLabs);
        assert_eq!(consent(Consent::SingleHostOutsideLabs, 2), Consent::AllowListOutsideLabs);
        assert_eq!(consent(Consent::Server, 9), Consent::Server, "which agrees itself");
    }
}
