//! A server in an XDP program: it gives every request the same answer, and keeps no state of connections.
//!
//! It answers faster than clients ask, so it is not what limits a test. It makes each answer from the segment that it answers and from
//! nothing else: a segment that arrives twice gets the same answer twice, and a segment with payload is a request, whether a connection was
//! opened before it or not.

mod answer;
mod counters;
mod device;
mod port;
mod program;
mod responder_test;

use std::net::{IpAddr, SocketAddr};

pub use answer::{AfterAnswer, Answer};
pub use counters::XdpResponderCounts;
use fathom_engine::Error;
use fathom_model::{Note, units::Bytes};
use fathom_sys::{
    bpf::{PerCpuArray, Program, ProgramType, XdpLink, XdpMode},
    clock,
    policy::{AllowedPeers, Network},
};
pub use responder_test::{ADDRESS, MODE, ResponderTest};
pub(crate) use responder_test::{answer, mode};

use crate::attachment;

use self::{counters::Counter, device::WatchedDevice, port::ReservedPort, program::ProgramSetup};

/// Where a responder answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponderPlace {
    /// The device on which the frames of its clients arrive.
    pub device: String,
    /// The addresses of this host that they ask.
    pub addresses: Vec<IpAddr>,
    /// The port; 0 lets the kernel choose one.
    pub port: u16,
    /// Where in the receive path it answers. Nothing falls back to generic mode.
    pub mode: XdpMode,
}

/// A responder that answers. Dropping it takes it off its device, as does the end of the process.
#[derive(Debug)]
pub struct XdpResponder {
    device: WatchedDevice,
    port: ReservedPort,
    n_answer: usize,
    counts: PerCpuArray<{ Counter::WORDS }>,
    _link: XdpLink,
}

impl XdpResponder {
    /// Answers from now on, with a body of this size.
    ///
    /// Only guests are answered; segments of others are dropped and counted. Addresses whose IP version no guest has are left out.
    ///
    /// # Errors
    /// Privileges are missing, the device cannot run the program, a socket of this host has the port, or no segment holds the answer.
    pub fn open(
        place: &ResponderPlace,
        guests: &AllowedPeers,
        (size, after): (Bytes, AfterAnswer),
    ) -> Result<Self, Error> {
        let link = device::find(&place.device)?;
        let networks = guests.networks();
        let addresses = with_guests(&place.addresses, networks);
        if addresses.is_empty() {
            return Err(Error::BadRequest {
                what: format!("{} has no address of the IP version of the clients that may ask it", place.device),
                hint: Some(
                    "allow clients with addresses of the other IP version, or answer at an address of theirs"
                        .to_owned(),
                ),
            });
        }
        let segment_max = device::segment_max(link.mtu_bytes);
        let answer = fitting_answer((size, after), &addresses, segment_max, &link.name)?;
        let port = ReservedPort::reserve(&addresses, place.port, link.index)?;
        let setup = ProgramSetup {
            own: link.mac.unwrap_or_default(),
            addresses,
            port: port.number(),
            guests: networks.to_vec(),
            answer,
            segment_max,
            numbers_apart: numbers_apart(),
        };
        let attach = || {
            let counts = PerCpuArray::create("fathom_answers", 1)?;
            let program = Program::load(ProgramType::Xdp, "fathom_respond", &program::program(&setup, &counts))?;
            Ok((counts, XdpLink::attach(&program, link.index, place.mode)?))
        };
        let (counts, attached) = attach()
            .map_err(|cause| attachment::refused(&link, place.mode, "ask for generic XDP, which is slower", cause))?;
        let n_answer = setup.answer.bytes().len();
        Ok(Self { device: WatchedDevice::new(link, place.mode)?, port, n_answer, counts, _link: attached })
    }

    /// The addresses with the port.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.port.addresses()
    }

    /// The bytes of an answer, head included.
    #[must_use]
    pub const fn answer_bytes(&self) -> usize {
        self.n_answer
    }

    /// What it has done up to now.
    ///
    /// # Errors
    /// Never, as long as the kernel keeps its map.
    pub fn counts(&self) -> Result<XdpResponderCounts, Error> {
        let words = self.counts.sum(0);
        let words = words.map_err(|cause| Error::System { what: "read what was answered".to_owned(), cause })?;
        Ok(XdpResponderCounts::from_words(words))
    }

    /// Answers that the driver of the device has not sent up to now; `None` if it does not count them.
    #[must_use]
    pub fn n_lost_by_driver(&self) -> Option<u64> {
        self.device.n_lost()
    }

    /// What its user has to know: why answers may not arrive, or did not. It reads the counters of the driver, which takes long with some
    /// drivers.
    ///
    /// # Errors
    /// As [`XdpResponder::counts`].
    pub fn notes(&self) -> Result<Vec<Note>, Error> {
        let counts = self.counts()?;
        let mut notes = self.device.notes();
        if counts.no_room > 0 {
            notes.push(Note::new("no-room", no_room_text(self.device.name(), counts.no_room, self.n_answer)));
        }
        if counts.strangers > 0 {
            let text =
                format!("packets dropped because their source address is not one that may ask: {}", counts.strangers);
            notes.push(Note::new("strangers", text));
        }
        Ok(notes)
    }
}

/// The addresses of IP versions that guests have.
fn with_guests(addresses: &[IpAddr], guests: &[Network]) -> Vec<IpAddr> {
    let is_guest_of =
        |address: IpAddr| guests.iter().any(move |network| network.address().is_ipv4() == address.is_ipv4());
    addresses.iter().copied().filter(|address| guests.is_empty() || is_guest_of(*address)).collect()
}

fn no_room_text(device: &str, n: u64, n_answer: usize) -> String {
    format!(
        "answers not sent for want of room: {n}. An answer of {n_answer} bytes is written into the frame of its request, and frames on {device} \
         cannot grow so much: those of sockets behind a veth grow by some 200 bytes. Choose a smaller body, or a device whose receive buffers \
         hold whole frames"
    )
}

/// The answer. It must fit into one segment of each IP version that is answered.
fn fitting_answer(
    (size, after): (Bytes, AfterAnswer),
    addresses: &[IpAddr],
    segment_max: [u16; 2],
    device: &str,
) -> Result<Answer, Error> {
    let largest = addresses.iter().map(|address| usize::from(segment_max[usize::from(address.is_ipv6())])).min();
    let largest = largest.expect("a responder has an address");
    let answer = Answer::new(size, after);
    answer.filter(|answer| answer.bytes().len() <= largest).ok_or_else(|| {
        let fitting = (0..largest).rev().find(|n_body| {
            Answer::new(Bytes(*n_body as u64), after).is_some_and(|answer| answer.bytes().len() <= largest)
        });
        Error::Unsupported {
            what: format!(
                "the XDP program answers with a single segment, which holds {largest} bytes on {device}: a body of {} bytes with its head is longer",
                size.0
            ),
            hint: Some(format!("choose a body of at most {} bytes, or a responder with sockets", fitting.unwrap_or(0))),
        }
    })
}

/// The distance of our sequence numbers from those of clients, another one at each start.
fn numbers_apart() -> i32 {
    i32::try_from(clock::now().0 >> 10 & 0x3fff_ffff).expect("30 bits are left")
}

#[cfg(test)]
mod tests;
