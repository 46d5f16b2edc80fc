//! Starts the agents of the members of a group, each in the way that the controller's inventory says.

use std::{path::Path, thread};

use fathom_engine::StopFlag;
use fathom_model::plan::HostReach;
use fathom_sys::{
    netlink::namespace::{Namespaces, NetNs},
    process::{confinement::Confinement, own_program},
};

use crate::{
    AgentStream, Error,
    launcher::{self, ssh},
    protocol::{Member, MemberReach},
};

/// Starts the agents of all members; those on other machines at the same time. The results are in the order of the members.
pub(super) fn start_all(members: &[Member], stop: &StopFlag) -> Vec<Result<AgentStream, Error>> {
    let program = own_program::path();
    thread::scope(|scope| {
        let program = program.as_path();
        let in_thread = |reach| {
            let starting = thread::Builder::new().spawn_scoped(scope, move || start(reach, program, stop));
            starting.map_err(|cause| Error::System { what: "connect to all hosts at once".to_owned(), cause })
        };
        // On this machine, threads would only compete for the cores.
        let threads: Vec<_> =
            members.iter().map(|Member { reach, .. }| is_elsewhere(reach).then(|| in_thread(reach))).collect();
        let started = members.iter().zip(threads).map(|(Member { reach, .. }, thread)| match thread {
            Some(thread) => thread?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => start(reach, program, stop),
        });
        started.collect()
    })
}

const fn is_elsewhere(reach: &MemberReach) -> bool {
    matches!(reach, MemberReach::Host(HostReach::Ssh(_) | HostReach::Exec(_) | HostReach::Tls { .. }))
}

fn start(reach: &MemberReach, program: &Path, stop: &StopFlag) -> Result<AgentStream, Error> {
    match reach {
        MemberReach::Namespace { net, reached } => {
            let open = |error: fathom_sys::Error| Error::System {
                what: format!("open the {reached}"),
                cause: std::io::Error::other(error.to_string()),
            };
            let net = NetNs::open(net).map_err(open)?;
            let place = Namespaces { user: None, net, confinement: Confinement::default() };
            launcher::namespace(program, &place, reached.clone())
        }
        MemberReach::Host(HostReach::Ssh(host)) => ssh::ssh(host, program, stop),
        MemberReach::Host(HostReach::Exec(host)) => launcher::exec(&host.command),
        MemberReach::Host(HostReach::Tls { address, key, .. }) => {
            launcher::tls(address, &key.as_deref().unwrap_or_default().parse()?)
        }
        MemberReach::Host(HostReach::This | HostReach::At(_)) => launcher::self_exec(program),
        MemberReach::Host(
            HostReach::Lab(_) | HostReach::LabUp(..) | HostReach::Kubernetes(_) | HostReach::Inventory(_),
        ) => Err(Error::System {
            what: "reach a host that is known only to the controller".to_owned(),
            cause: std::io::ErrorKind::Unsupported.into(),
        }),
    }
}
