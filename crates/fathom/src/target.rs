//! Which addresses traffic may be sent to, and who is behind a word on the command line.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use fathom_lab::{Lab, StateFolder};
use fathom_model::plan::Reach;
use fathom_sys::namespace::NetNs;
use fathom_sys::policy::Network;

use crate::{
    execute::Surroundings,
    exit::{Exit, Screen},
};

/// What the user has allowed beyond this machine, its labs, and agents that answered with the key.
#[derive(Debug, Default)]
pub(crate) struct Allowed(Vec<Network>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowFile {
    allow: Vec<String>,
}

fn allow_path() -> Option<PathBuf> {
    let configured = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    Some(configured.or_else(home)?.join("fathom/allow.toml"))
}

impl Allowed {
    /// What `--allow`, `FATHOM_ALLOW` and the allow file say.
    pub(crate) fn gather<'a>(given: impl Iterator<Item = &'a String>) -> anyhow::Result<Self> {
        let mut words: Vec<String> = given.cloned().collect();
        if let Ok(list) = env::var("FATHOM_ALLOW") {
            words.extend(list.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned));
        }
        if let Some(text) = allow_path().and_then(|path| fs::read_to_string(path).ok()) {
            let file: AllowFile = toml::from_str(&text).context("cannot read the allow file")?;
            words.extend(file.allow);
        }
        let parsed = words.iter().map(|word| {
            word.parse().map_err(|_| {
                let screen = Screen::new(Exit::Usage, format!("`{word}` is not an address or a network"));
                anyhow::Error::from(screen.line("use", "--allow 10.0.0.2 or --allow 10.0.0.0/24"))
            })
        });
        Ok(Self(parsed.collect::<anyhow::Result<_>>()?))
    }

    /// All of it, as an option takes it.
    pub(crate) fn list(&self) -> String {
        self.0.iter().map(Network::to_string).collect::<Vec<_>>().join(",")
    }

    /// Refuses an address that the user has not allowed; `command` is the line that would.
    pub(crate) fn check(&self, address: IpAddr, shown: &str, command: &str) -> Result<(), Screen> {
        if is_never_a_target(address) {
            let screen = Screen::new(Exit::Preflight, format!("{shown} is never a target"));
            return Err(
                screen.line("why", "broadcast, multicast and unspecified addresses reach hosts that nobody named")
            );
        }
        if address.is_loopback() || self.0.iter().any(|network| network.contains(address)) {
            return Ok(());
        }
        Err(Screen::new(Exit::Preflight, format!("{shown} is not a target you have allowed"))
            .line("why", "it is neither this machine, a lab, nor a host that answered with a key")
            .line("allow", format!("{command} --allow {address}        (or a line in ~/.config/fathom/allow.toml)")))
    }
}

impl Allowed {
    /// Whether all addresses from one to another lie within one network that is allowed.
    pub(crate) fn covers(&self, (first, last): (IpAddr, IpAddr)) -> bool {
        let own = [Network::LOOPBACK_V4, Network::LOOPBACK_V6];
        own.iter().chain(&self.0).any(|network| network.contains(first) && network.contains(last))
    }

    /// Refuses a network, or an address, that the user has not allowed as a whole.
    pub(crate) fn check_network(&self, word: &str, command: &str) -> Result<(), Screen> {
        let wanted: Network = word.parse().map_err(|_| {
            Screen::new(Exit::Usage, format!("`{word}` is not an address or a network"))
                .line("use", "10.0.0.2 or 10.0.0.0/24")
        })?;
        let own = [Network::LOOPBACK_V4, Network::LOOPBACK_V6];
        if own.iter().chain(&self.0).any(|network| network.covers(&wanted)) {
            return Ok(());
        }
        Err(Screen::new(Exit::Preflight, format!("{wanted} is not what you have allowed"))
            .line(
                "why",
                "a script may connect to all of it, and it is neither this machine nor within what you have allowed",
            )
            .line("allow", format!("{command} --allow {wanted}        (or a line in ~/.config/fathom/allow.toml)")))
    }
}

/// Refuses to probe a host that the user has not allowed; in a lab everything may be probed, for nothing leaves it.
pub(crate) fn check_probe(host: &str, from: Option<&Reach>, surroundings: &Surroundings) -> Result<(), Screen> {
    let is_in_lab = match from {
        Some(Reach::Lab(_) | Reach::LabUp(..)) => true,
        Some(Reach::This) => is_in_lab(),
        _ => false,
    };
    if is_in_lab {
        return Ok(());
    }
    for address in resolve(host)? {
        surroundings.allowed.check(address, host, &surroundings.command)?;
    }
    Ok(())
}

/// Whether this process itself is on a host of a lab that is up.
pub(crate) fn is_in_lab() -> bool {
    let Ok(here) = NetNs::current() else { return false };
    let Ok(state) = StateFolder::from_environment() else { return false };
    let labs = fathom_lab::list(&state).unwrap_or_default();
    let labs = labs.iter().filter_map(|(name, _)| Lab::find(&state, name).ok());
    let is_here = |host: &fathom_lab::Host| host.namespaces().net.is_same(&here).unwrap_or(false);
    labs.into_iter().any(|lab| lab.hosts().iter().any(is_here))
}

fn is_never_a_target(address: IpAddr) -> bool {
    address.is_multicast() || address.is_unspecified() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// How long a target may take to accept a connection: TCP sends its first segment three times in it.
const REACH_PATIENCE: Duration = Duration::from_secs(5);

/// Connects once, so that a target that is not there is told before anything is started; one address that answers is enough.
pub(crate) fn reach(addresses: &[IpAddr], port: u16) -> Result<(), Screen> {
    let mut refused = Ok(());
    for target in addresses.iter().map(|address| SocketAddr::new(*address, port)) {
        match TcpStream::connect_timeout(&target, REACH_PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => refused = refused.and(Err((target, error))),
        }
    }
    refused.map_err(|(target, error)| {
        Screen::new(Exit::Preflight, format!("cannot reach {target}"))
            .line("why", error.to_string())
            .line("try", "whether the server listens there: ss -ltn")
    })
}

/// The addresses behind a name or an address.
pub(crate) fn resolve(host: &str) -> Result<Vec<IpAddr>, Screen> {
    let unknown = |why: String| {
        Screen::new(Exit::Preflight, format!("there is no host `{host}`"))
            .line("why", why)
            .line("try", "an address, or a name that `getent hosts` knows")
    };
    let found = (host, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    if addresses.is_empty() { Err(unknown("the name has no address".to_owned())) } else { Ok(addresses) }
}
