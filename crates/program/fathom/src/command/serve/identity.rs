//! The server of identities of `fathom serve`: it tells who it is, for tests of devices that spread.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    net::SocketAddr,
};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_model::units::{Nanos, counted, grouped};
use fathom_sys::process::limits;
use fathom_targets::{ClientLimits, Dialect, Identity, IdentityServer, PORT, ServedTotals};

use super::tool::{ListeningTool, ServedTool, client_networks};

/// Once connections are scarce, one without a question for this long is closed.
const FIRST_WITHIN: Nanos = Nanos::from_secs(5);
/// The same of one that has asked. Flows ask at least once in 10 s; those behind a device that drops everything for a while are not closed.
const NEXT_WITHIN: Nanos = Nanos::from_secs(60);
/// One in this many descriptors may be a connection: the others are for agents and other servers.
const DESCRIPTOR_SHARE: u64 = 2;

pub(super) const IDENTITY: ServedTool = ServedTool {
    name: "identity",
    port: PORT,
    port_text: "7701",
    options: &["identity-name", "identity-from"],
    arguments,
    bind,
};

/// Returns the options of the server, under their own heading.
fn arguments() -> Vec<Arg> {
    let name = Arg::new("identity-name").long("identity-name").value_name("NAME");
    let arguments = [
        IDENTITY.port_argument(
            "tell clients over TCP and UDP who answers, for tests of what is in between [default port: 7701]",
        ),
        name.help("the name to tell [default: that of this host]; a token is drawn beside it"),
        Arg::new("identity-from")
            .long("identity-from")
            .value_name("CIDR")
            .help("serve these addresses only")
            .action(ArgAction::Append),
    ];
    arguments.into_iter().map(|argument| argument.help_heading("Server of identities")).collect()
}

/// Draws a number that no other server has, by the keys that the standard library draws for its hash maps. 0 and 1 are those of questions.
fn token() -> u64 {
    RandomState::new().build_hasher().finish().max(2)
}

/// Listens as the options say.
fn bind(matches: &ArgMatches, at: SocketAddr) -> anyhow::Result<ListeningTool> {
    let given = matches.get_one::<String>("identity-name").cloned();
    let name = given.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    let name = name.as_deref().map(str::trim).filter(|name| !name.is_empty()).unwrap_or("unnamed");
    let identity = Identity::new(name, token());
    let descriptors = limits::descriptors_max().map_err(|error| IDENTITY.listen_error(at, &error.source))?;
    let limits = ClientLimits {
        networks: client_networks(matches, "identity-from")?,
        connections: usize::try_from(descriptors / DESCRIPTOR_SHARE).unwrap_or(usize::MAX),
        first_within: FIRST_WITHIN,
        next_within: NEXT_WITHIN,
    };
    let server = IdentityServer::bind(at, identity, Dialect::Fathom)
        .map_err(|error| IDENTITY.listen_error(at, &error.source))?
        .limited(limits);
    let identity = server.identity().to_string();
    let listening = ListeningTool::telling(server.address(), move |stop| {
        server.run(stop).map(|served| told(&served)).map_err(|error| format!("{error}: {}", error.source))
    });
    Ok(listening.about(identity))
}

/// Returns the last line of the server.
fn told(served: &ServedTotals) -> String {
    let datagrams = match served.datagrams_turned_away {
        0 => String::new(),
        n => format!(", {} turned away", counted(n, "datagram")),
    };
    format!(
        "{} answered, {} not of its protocol, {} turned away{datagrams}",
        counted(served.answers, "message"),
        grouped(served.refused),
        counted(served.connections_turned_away, "connection")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_tells_messages_and_not_tests() {
        let mut served = ServedTotals { answers: 1_458_618, connections_turned_away: 1, ..ServedTotals::default() };
        let line = "1,458,618 messages answered, 0 not of its protocol, 1 connection turned away";
        assert_eq!(told(&served), line);
        served.datagrams_turned_away = 7;
        assert_eq!(told(&served), format!("{line}, 7 datagrams turned away"));
    }
}
