//! The configuration of a load, shared by its workers.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use fathom_engine::Error;
use fathom_model::{Role, Settings, units::Nanos};
use fathom_sys::policy::Policy;

use crate::metrics::RecorderConfig;
use crate::target::{TargetConfig, TargetConfigError, WeightedOrder};

/// The key under which a responder reports its address.
pub(crate) const ADDRESS: &str = "address";

/// Shared by all workers; only the flag changes.
#[derive(Debug)]
pub(crate) struct LoadConfig {
    pub(crate) target: Arc<TargetConfig>,
    /// The servers' names, for display.
    pub(crate) name: String,
    pub(crate) timeout: Nanos,
    /// The most requests in flight on a connection.
    pub(crate) pipeline_depth: u16,
    /// Whether a request is complete once it is sent.
    pub(crate) ignores_answers: bool,
    /// Whether everything counts from the start, with no warm-up.
    pub(crate) is_counted: bool,
    /// Whether any worker has opened a connection.
    pub(crate) reached: AtomicBool,
    pub(crate) recorder_config: Arc<RecorderConfig>,
}

/// Rejects combinations with `leave`: the request must be the only data sent, and its hand-over to the kernel must be observable.
fn check_ignored_answers(settings: &Settings, config: &TargetConfig) -> Result<(), TargetConfigError> {
    if settings.count("per-connection") != Some(1) {
        return Err(TargetConfigError::MissingOption { one: "leave", other: "per-connection 1" });
    }
    let others = [
        ("https", config.upstreams.iter().any(|route| !route.is_plain())),
        ("proxy-protocol", settings.text("proxy-protocol").is_some()),
        ("pipeline", settings.count("pipeline").is_some_and(|depth| depth > 1)),
    ];
    match others.into_iter().find(|(_, is_there)| *is_there) {
        Some((other, _)) => Err(TargetConfigError::ExclusiveOptions { one: "leave", other }),
        None => Ok(()),
    }
}

impl LoadConfig {
    /// Reads the configuration from a role.
    pub(crate) fn of(role: &Role, policy: &Policy, kind: &'static str) -> Result<Self, Error> {
        let settings = &role.settings;
        let ours = role.peer.get(ADDRESS).and_then(|address| address.parse::<SocketAddr>().ok());
        if settings.text("url").is_none() && ours.is_none() {
            return Err(Error::Endpoint { kind, what: ADDRESS });
        }
        let config = TargetConfig::prepare((settings, policy), ours, role.address)?;
        let names: Vec<&str> = config.upstreams.iter().map(|route| route.name.as_str()).collect();
        let leaves = settings.flag("leave");
        if leaves {
            check_ignored_answers(settings, &config)?;
        }
        let pipeline = settings.count("pipeline").and_then(|depth| u16::try_from(depth).ok());
        Ok(Self {
            name: names.join(", "),
            target: Arc::new(config),
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
            pipeline_depth: pipeline.unwrap_or(1),
            ignores_answers: leaves,
            is_counted: settings.count("count").is_some(),
            reached: AtomicBool::new(false),
            recorder_config: RecorderConfig::of(settings),
        })
    }

    /// Distributes the connections over the workers in turn. Returns, for each worker, the server of each of its connections.
    pub(crate) fn assign_connections(&self, n_connections: u64, n_workers: u64) -> Vec<Vec<u16>> {
        let mut rota: WeightedOrder = self.target.upstream_order.clone();
        let mut upstream = || u16::try_from(rota.next_index()).expect("there are fewer servers than turns of a rota");
        let share = |idx: u64| n_connections / n_workers + u64::from(idx < n_connections % n_workers);
        (0..n_workers).map(|idx| (0..share(idx)).map(|_| upstream()).collect()).collect()
    }
}
