//! Request and response in single datagrams.
//!
//! A datagram begins with the class of its sizes, a token of the trial and its number, eight bytes in total. An answer that does
//! not arrive in time is lost: it is counted, and the flow continues with the next transaction, so a loss only costs a timeout.
//!
//! The first request of an address is answered with a challenge of eight bytes. The initiator returns it and repeats the request;
//! answers go only to addresses that have returned their challenge.

mod initiator;
mod responder;

use fathom_engine::{Error, Test};
use fathom_model::{OptionDoc, Role, Settings, Side, ValueKind, names::count, units::Nanos};
use fathom_sys::{policy::Policy, process::limits};

use super::{
    OpenLoad, SPIN,
    sizes::{self, ANNOUNCEMENT, MessageSizes, SizeBounds, SizeClass},
};
use crate::{
    connection_setup::{self, ListenAddresses},
    flow_layout::{DescriptorTables, FlowLayout},
    options::{self, SocketOptions, invalid_value},
};

/// The size of a request.
pub(crate) const REQUEST: OptionDoc = OptionDoc { default: Some("8"), ..sizes::REQUEST };
/// The size of a response.
pub(crate) const RESPONSE: OptionDoc = OptionDoc { default: Some("8"), ..sizes::RESPONSE };
/// The timeout of an answer.
pub(crate) const TIMEOUT: OptionDoc = OptionDoc {
    name: "timeout",
    value: ValueKind::Span,
    default: Some("200ms"),
    help: "time to wait for an answer before it counts as lost",
};

/// The shortest and the longest timeout. With a shorter one the kernel's clock tick would cause losses, with a longer one the end
/// of the trial would.
const TIMEOUTS: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(10));
/// The limits of one datagram: at least the header, and over IPv4 at most 65,507 bytes.
const BOUNDS: SizeBounds = SizeBounds { shortest: HEADER_LEN, longest: 65_507 };
/// Descriptors of a process besides those of flows.
const DESCRIPTORS_MORE: u64 = 128;

/// Answers that arrived after their timeout, or twice.
pub(crate) const LATE: &str = "late";
/// Datagrams of other senders or other trials.
pub(crate) const FOREIGN: &str = "strangers";

/// The counters of an initiator; those of a closed load come first.
const COUNTERS: &[&str] = &[
    count::TRANSACTIONS,
    count::SENT,
    count::TRANSACTIONS_LOST,
    LATE,
    FOREIGN,
    count::INTENDED,
    count::LATE_NO_CONNECTION,
    count::LATE_OWN_CPU,
];
const N_CLOSED: usize = 5;
const RESPONDER_COUNTERS: &[&str] = &[count::TRANSACTIONS, count::RECEIVED, FOREIGN];

/// Indices of the counters of an initiator.
mod counter {
    use fathom_engine::load::LoadCounters;

    pub(super) const SENT: usize = 1;
    pub(super) const LOST: usize = 2;
    pub(super) const LATE: usize = 3;
    pub(super) const STRANGERS: usize = 4;
    pub(super) const LOAD: LoadCounters =
        LoadCounters { answers: 0, sent: SENT, intended: 5, late_no_connection: 6, late_own_cpu: 7 };
}

/// The length of the header of a datagram.
const HEADER_LEN: usize = 8;
/// The number of bits of a number; at the highest rates a flow would use them up only after days.
const NUMBER_BITS: u32 = 40;

/// The values in place of the class that mark a challenge and its return.
const CHALLENGE: u8 = 0xff;
const CHALLENGE_RESPONSE: u8 = 0xfe;

/// A challenge or its return: the 56 bits after its first byte are known only to the challenged address.
fn challenge_datagram(kind: u8, number: u64) -> [u8; HEADER_LEN] {
    let mut datagram = number.to_be_bytes();
    datagram[0] = kind;
    datagram
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RrHeader {
    class: SizeClass,
    /// Whether the next exchange of the flow is stamped.
    announces: bool,
    token: u16,
    number: u64,
}

impl RrHeader {
    fn write(self, datagram: &mut [u8]) {
        let number = self.number & ((1 << NUMBER_BITS) - 1);
        let class = self.class.0 | if self.announces { ANNOUNCEMENT } else { 0 };
        let bits = u64::from(class) << 56 | u64::from(self.token) << NUMBER_BITS | number;
        datagram[..HEADER_LEN].copy_from_slice(&bits.to_be_bytes());
    }

    fn read(datagram: &[u8]) -> Option<Self> {
        let bits = u64::from_be_bytes(*datagram.first_chunk()?);
        let [class, high, low, ..] = bits.to_be_bytes();
        (class < CHALLENGE_RESPONSE).then_some(())?;
        let (token, number) = (u16::from_be_bytes([high, low]), bits & ((1 << NUMBER_BITS) - 1));
        let announces = class & ANNOUNCEMENT != 0;
        Some(Self { class: SizeClass(class & !ANNOUNCEMENT), announces, token, number })
    }
}

/// The configuration of both sides.
struct UdpRrConfig {
    role: Role,
    sizes: MessageSizes,
    token: u16,
    timeout: Nanos,
    n_flows: usize,
    n_workers: usize,
    spins: bool,
    open_load: Option<OpenLoad>,
    options: SocketOptions,
}

/// Checks the sizes, the timeout and the socket options.
///
/// # Errors
/// An option is impossible; the error names it.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    MessageSizes::of(settings, 0, BOUNDS)?;
    timeout(settings)?;
    SocketOptions::check(settings)
}

fn timeout(settings: &Settings) -> Result<Nanos, Error> {
    let timeout = settings.span(TIMEOUT.name).unwrap_or(Nanos::from_millis(200));
    let is_possible = (TIMEOUTS.0..=TIMEOUTS.1).contains(&timeout);
    if is_possible { Ok(timeout) } else { Err(invalid_value(TIMEOUT.name, "1 ms to 10 s", &timeout)) }
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
    let (n_flows, n_workers) = options::flows_and_workers(role);
    let timeout = timeout(&role.settings)?;
    let spins = role.settings.flag(SPIN.name);
    if spins && (n_flows > n_workers || schedule.is_some()) {
        return Err(Error::Unsupported {
            what: "to look for answers all the time takes a worker for each flow".to_owned(),
            hint: Some(format!("set --threads {n_flows} without --rate, or leave out --spin")),
        });
    }
    let n_descriptors = u64::try_from(n_flows).unwrap_or(u64::MAX / 2) + DESCRIPTORS_MORE;
    limits::allow_descriptors(n_descriptors).map_err(|cause| Error::Unsupported {
        what: format!("{n_flows} flows are more than this process may have open: {cause}: {}", cause.source),
        hint: Some(format!("raise the limit (ulimit -n {n_descriptors}), or ask for fewer flows")),
    })?;
    let config = UdpRrConfig {
        role: role.clone(),
        sizes: MessageSizes::of(&role.settings, role.seed, BOUNDS)?,
        token: u16::try_from(connection_setup::trial_secret(role).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48)
            .expect("16 bits are left"),
        timeout,
        n_flows,
        n_workers,
        spins,
        open_load: schedule,
        options: SocketOptions::of(role, policy),
    };
    Ok(match role.side {
        Side::Initiator => Box::new(initiator::UdpRrInitiator::connect(kind, config)?),
        Side::Responder => Box::new(responder::UdpRrResponder::bind(
            config,
            ListenAddresses::of(role, FlowLayout { n_flows, n_workers, tables: DescriptorTables::Shared })?,
        )?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let mut datagram = [7; 9];
        for announces in [true, false] {
            let header = RrHeader { class: SizeClass(63), announces, token: 0xbeef, number: (1 << NUMBER_BITS) - 1 };
            header.write(&mut datagram);
            assert_eq!(RrHeader::read(&datagram), Some(header));
        }
        assert_eq!(datagram[8], 7);
        assert_eq!(RrHeader::read(&datagram[..7]), None);
        for kind in [CHALLENGE, CHALLENGE_RESPONSE] {
            let proof = challenge_datagram(kind, u64::MAX / 3);
            assert_eq!((proof[0], RrHeader::read(&proof)), (kind, None), "it is neither request nor answer");
        }
    }
}
