//! The responder's side of a role.

use std::net::SocketAddr;

use fathom_engine::{EndCondition, Error, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_http::responder::ResponderOptions;
use fathom_model::{
    Endpoints, OptionDoc, Record, Role, Settings, Side, ValueKind,
    names::count,
    units::{Bytes, Nanos},
};
use fathom_sys::{bpf::XdpMode, clock, netlink::Netlink, policy::Policy};

use super::{AfterAnswer, ResponderPlace, XdpResponder, XdpResponderCounts, device::DEAF};

/// The key of the responder's address among the endpoints.
pub const ADDRESS: &str = "address";

/// Where the programs of both sides run.
pub const MODE: OptionDoc = OptionDoc {
    name: "xdp",
    value: ValueKind::Choice(&["native", "generic"]),
    default: Some("native"),
    help: "where XDP programs run: in the driver, or in the network stack, which is slower and works with every driver",
};

/// The counters, in the order of [`XdpResponderCounts`].
const COUNTERS: &[&str] = &[count::REQUESTS, count::CONNECTIONS, SENT, NO_ROOM, UNANSWERED, STRANGERS];
/// Frames that the responder sent.
const SENT: &str = "frames_sent";
/// Segments without an answer, for want of room in their frames.
const NO_ROOM: &str = "no_room";
/// Segments that need no answer.
const UNANSWERED: &str = "unanswered";
/// Segments of others than the two sides of the test.
const STRANGERS: &str = "strangers";
/// The counters are read this often.
const READ_EVERY: Nanos = Nanos::from_millis(10);

/// A responder for one trial. It answers from its preparation on, until the other side has finished.
#[derive(Debug)]
pub struct ResponderTest {
    responder: XdpResponder,
    address: SocketAddr,
    cores: Vec<usize>,
}

impl ResponderTest {
    /// Answers at the address of the role, on the device that has it, as its settings say: size, keep-alive, and [`MODE`].
    ///
    /// # Errors
    /// As [`XdpResponder::open`], and if no device of this host has the address.
    pub fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let place = place(role)?;
        let guests = fathom_engine::guests(role, policy);
        let responder = XdpResponder::open(&place, &guests, answer(&role.settings, role.seed)?)?;
        let address = *responder.addresses().first().expect("a responder has an address");
        Ok(Self { responder, address, cores: role.cores.clone() })
    }
}

/// The device that has the address of the role.
fn place(role: &Role) -> Result<ResponderPlace, Error> {
    let unsupported = |what: String, hint: &str| Error::Unsupported { what, hint: Some(hint.to_owned()) };
    let Some(address) = role.address.map(|address| address.to_canonical()).filter(|address| !address.is_loopback())
    else {
        let what = "loopback has no native XDP: both sides must be on hosts of their own".to_owned();
        return Err(unsupported(what, "measure in a lab, or with another machine"));
    };
    let system = |cause| Error::System { what: format!("find the device with {address}"), cause };
    let mut netlink = Netlink::open().map_err(system)?;
    let index =
        netlink.addresses().map_err(system)?.into_iter().find(|(_, own)| *own == address).map(|(index, _)| index);
    let link = netlink.links().map_err(system)?.into_iter().find(|link| Some(link.index) == index);
    let device = link.ok_or_else(|| {
        let what = format!("no device of this host has {address}, which the other side asks");
        unsupported(what, "address the host by an address of its own device, not by one that is translated")
    })?;
    let port = fathom_http::responder::port(&role.settings);
    Ok(ResponderPlace { device: device.name, addresses: vec![address], port, mode: mode(&role.settings) })
}

/// The mode that the settings ask for.
pub(crate) fn mode(settings: &Settings) -> XdpMode {
    if settings.text(MODE.name).as_deref() == Some("generic") { XdpMode::Generic } else { XdpMode::Native }
}

/// The size of the body, and what follows an answer: as `per-connection` says, it is the last one of its connection or not.
pub(crate) fn answer(settings: &Settings, seed: u64) -> Result<(Bytes, AfterAnswer), Error> {
    let options = ResponderOptions::read(settings, seed)?;
    let is_last = settings.count("per-connection") == Some(1);
    Ok((options.size, if is_last { AfterAnswer::Closes } else { options.keep_alive.try_into()? }))
}

impl Test for ResponderTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::from([(ADDRESS.to_owned(), self.address.to_string())])
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let responder = &self.responder;
        let pool =
            WorkerPool { states: vec![()], counters: COUNTERS, cores: &self.cores, until: EndCondition::PeerFinished };
        let results = pool.run(context, &mut (), |worker, ()| read_until_over(&worker, responder))?;
        let mut record = results.record(Side::Responder);
        // The program of the other side came after this one, and is gone by now.
        record.notes.extend(responder.notes()?.into_iter().filter(|note| note.id != DEAF));
        Ok(record)
    }
}

/// Reads the counters of the program, which needs no thread to answer, until the trial is over.
fn read_until_over(worker: &WorkerHandle<'_>, responder: &XdpResponder) -> Result<(), Error> {
    loop {
        let is_over = worker.is_over();
        let XdpResponderCounts { syns, requests, sent, no_room, unanswered, strangers } = responder.counts()?;
        for (idx, count) in [requests, syns, sent, no_room, unanswered, strangers].into_iter().enumerate() {
            worker.raise(idx, count);
        }
        if is_over {
            return Ok(());
        }
        clock::sleep_until(clock::now() + READ_EVERY);
    }
}
