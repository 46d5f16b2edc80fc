//! The server of identities of `fathom serve`: it tells who it is, for tests of devices that spread.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    net::SocketAddr,
};

use clap::{Arg, ArgMatches};
use fathom_interop::ServerTotals;
use fathom_targets::{Dialect, Identity, IdentityServer, PORT};

use super::tool::{ListeningTool, ServedTool};

pub(super) const IDENTITY: ServedTool =
    ServedTool { name: "identity", port: PORT, port_text: "7701", options: &["identity-name"], arguments, bind };

/// Returns the options of the server, under their own heading.
fn arguments() -> Vec<Arg> {
    let name = Arg::new("identity-name").long("identity-name").value_name("NAME");
    let arguments = [
        IDENTITY.port_argument(
            "tell clients over TCP and UDP who answers, for tests of what is in between [default port: 7701]",
        ),
        name.help("the name to tell [default: that of this host]; a token is drawn beside it"),
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
    let server = IdentityServer::bind(at, identity, Dialect::Fathom)
        .map_err(|error| IDENTITY.listen_error(at, &error.source))?;
    let identity = server.identity().to_string();
    let listening = ListeningTool::new(server.address(), move |stop| {
        let served = server.run(stop).map_err(|error| format!("{error}: {}", error.source))?;
        Ok::<_, String>(ServerTotals { finished: served.answers, failed: 0, rejected: served.refused })
    });
    Ok(listening.about(identity))
}
