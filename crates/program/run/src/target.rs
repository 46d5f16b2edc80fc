//! Resolves targets on the command line and checks that they are reachable.

use std::{
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use fathom_engine::Consent;
use fathom_lab::{Lab, StateFolder};
use fathom_model::TestPlan;
use fathom_sys::netlink::namespace::NetNs;

use crate::{
    exit::{Exit, UserError},
    registry,
};

/// Returns true if this process runs on a host of a lab that is up.
pub fn is_in_lab() -> bool {
    let Ok(here) = NetNs::current() else { return false };
    let Ok(state) = StateFolder::from_environment() else { return false };
    let labs = fathom_lab::list(&state).unwrap_or_default();
    let labs = labs.iter().filter_map(|(name, _)| Lab::find(&state, name).ok());
    let is_here = |host: &fathom_lab::Host| host.namespaces().net.is_same(&here).unwrap_or(false);
    labs.into_iter().any(|lab| lab.hosts().iter().any(is_here))
}

/// The longest wait for a target to accept a connection. TCP sends its first segment three times in this time.
const REACH_PATIENCE: Duration = Duration::from_secs(5);

/// Connects once, to report an unreachable target before anything is started. One address that answers is enough.
pub fn check_reachable(addresses: &[IpAddr], port: u16) -> Result<(), UserError> {
    let mut refused = Ok(());
    for target in addresses.iter().map(|address| SocketAddr::new(*address, port)) {
        match TcpStream::connect_timeout(&target, REACH_PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => refused = refused.and(Err((target, error))),
        }
    }
    refused.map_err(|(target, error)| {
        UserError::new(Exit::Preflight, format!("cannot reach {target}"))
            .with_line("why", error.to_string())
            .with_line("try", "whether the server listens there: ss -ltn")
    })
}

/// Returns the first host outside the plan to which a test sends. Ignores an invalid destination: the check of the test rejects it.
pub fn destination(test: &TestPlan) -> Option<String> {
    let targets = registry::kind(&test.kind).ok()?.destinations(&test.options).ok()?;
    targets.into_iter().find(|target| target.consent != Consent::WholeNetwork).map(|target| target.host)
}

/// Resolves a name or an address.
pub fn resolve(host: &str) -> Result<Vec<IpAddr>, UserError> {
    let unknown = |why: String| {
        // EAI_AGAIN of getaddrinfo(3), which std tells by its text only.
        let is_silent = why.contains("Temporary failure");
        let what = if is_silent { "no name server answers for" } else { "there is no host" };
        UserError::new(Exit::Preflight, format!("{what} `{host}`"))
            .with_line("why", why)
            .with_line("try", "an address, or a name that `getent hosts` knows")
    };
    let found = (host, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    if addresses.is_empty() { Err(unknown("the name has no address".to_owned())) } else { Ok(addresses) }
}
