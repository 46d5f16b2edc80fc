//! Request and response over TCP connections that stay open.
//!
//! A worker with one flow uses blocking calls ([`blocking`]). One with many flows, with bursts or with a schedule uses a reactor:
//! [`initiator`] on the initiator's side, [`responder`] on the responder's. Connections are opened during preparation, each on
//! the thread of its worker, which has its own descriptor table when one table would not hold all flows.

mod blocking;
mod config;
pub(crate) mod connection;
mod initiator;
mod multiplexed;
pub(crate) mod peer_timeout;
mod pending_request;
mod responder;
mod results;
pub(crate) mod sizes;
pub(crate) mod udp;
mod unit_stamps;
mod worker_setup;

use fathom_engine::{Error, IoBackend, LoadModel, Test};
use fathom_model::{OptionDoc, Role, Settings, ValueKind, units::Nanos};
use fathom_sys::policy::Policy;

use crate::flow_layout::{DescriptorTables, FlowLayout};
use crate::options::{SocketOptions, count, invalid_value};
use config::RrConfig;
pub(crate) use config::{ARRIVALS, OpenLoad, RATE};
pub(crate) use results::NOT_STARTED;
use sizes::{MessageSizes, SizeBounds};

/// The number of connections.
pub(crate) const FLOWS: OptionDoc = OptionDoc {
    name: "flows",
    value: ValueKind::Count(1, 1_000_000),
    default: Some("1"),
    help: "number of parallel flows",
};
/// The number of requests in flight on each flow.
pub(crate) const BURST: OptionDoc = OptionDoc {
    name: "burst",
    value: ValueKind::Count(1, 1024),
    default: Some("1"),
    help: "requests in flight per flow",
};
/// Whether to poll for answers continuously.
pub(crate) const SPIN: OptionDoc = OptionDoc {
    name: "spin",
    value: ValueKind::Flag,
    default: None,
    help: "busy-wait for messages instead of sleeping; only with one flow per thread",
};
/// A slow responder, to see its time in the anatomy.
pub(crate) const DELAY: OptionDoc = OptionDoc {
    name: "delay",
    value: ValueKind::Span,
    default: None,
    help: "our responder waits this long before each answer; only with one flow per thread",
};
/// The longest delay: the responder looks whether the trial is over no more often than this.
const DELAY_MAX: Nanos = Nanos::from_secs(1);
/// The kernel interface for I/O.
pub(crate) const REACTOR: OptionDoc = OptionDoc {
    name: "reactor",
    value: ValueKind::Choice(&["auto", "io_uring", "epoll"]),
    default: Some("auto"),
    help: "how the kernel serves many connections; auto: io_uring if available, else epoll",
};
/// Checks the sizes and the socket options.
///
/// # Errors
/// An option is impossible; the error names it.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    MessageSizes::of(settings, 0, SizeBounds::STREAM)?;
    if let Some(delay) = settings.span(DELAY.name).filter(|delay| *delay > DELAY_MAX) {
        return Err(invalid_value(DELAY.name, &format!("at most {DELAY_MAX}"), &delay));
    }
    SocketOptions::check(settings)
}

/// Prepares a side; without a schedule the load is closed.
///
/// # Errors
/// A part of the role cannot be done; the error names it.
pub(crate) fn prepare(
    kind: &'static str,
    role: &Role,
    policy: &Policy,
    schedule: Option<OpenLoad>,
) -> Result<Box<dyn Test>, Error> {
    let sizes = MessageSizes::of(&role.settings, role.seed, SizeBounds::STREAM)?;
    let spread = FlowLayout::of(role)?;
    let burst = count(&role.settings, &BURST).unwrap_or(1);
    let has_one_each = spread.n_flows <= spread.n_workers && burst == 1 && schedule.is_none();
    let spins = role.settings.flag(SPIN.name);
    let alone = [
        (spins, SPIN, "to look for messages all the time takes a worker for each flow"),
        (role.settings.span(DELAY.name).is_some(), DELAY, "to delay the answers of one flow takes a worker for each"),
    ];
    if let Some((_, option, what)) = alone.into_iter().find(|(is_asked, ..)| *is_asked && !has_one_each) {
        let (n_flows, name) = (spread.n_flows, option.name);
        return Err(Error::Unsupported {
            what: what.to_owned(),
            hint: Some(format!("set --threads {n_flows} without --burst and --rate, or leave out --{name}")),
        });
    }
    if has_one_each {
        return blocking::prepare(kind, role, sizes, &SocketOptions::of(role, policy));
    }
    let model = if schedule.is_some() { LoadModel::Open } else { LoadModel::Closed };
    let way = select_backend(role, spread, model)?;
    let options = SocketOptions::of(role, policy);
    multiplexed::prepare(
        kind,
        RrConfig { role: role.clone(), sizes, spread, burst, open_load: schedule, io_backend: way, options },
    )
}

/// The requested reactor. The default is epoll when one table does not hold all flows, because `io_uring` takes longer than a
/// trial to cancel the pending receives of a hundred thousand sockets.
fn select_backend(role: &Role, spread: FlowLayout, model: LoadModel) -> Result<IoBackend, Error> {
    let is_chosen = role.settings.text(REACTOR.name).is_some_and(|word| word != "auto");
    if is_chosen || spread.tables == DescriptorTables::Shared {
        return IoBackend::of(&role.settings, model);
    }
    let mut way = IoBackend::of(&role.settings.clone().with(REACTOR.name, "epoll"), model)?;
    "epoll, because io_uring is slow to release so many flows".clone_into(&mut way.note.text);
    Ok(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_flows_that_tables_are_split_are_served_by_epoll_unless_asked_otherwise() {
        let role = sizes::tests::role("1", "1");
        let split = FlowLayout { n_flows: 100_000, n_workers: 6, tables: DescriptorTables::PerWorker };
        assert_eq!(select_backend(&role, split, LoadModel::Closed).unwrap().reactor, fathom_engine::ReactorKind::Epoll);
    }
}
