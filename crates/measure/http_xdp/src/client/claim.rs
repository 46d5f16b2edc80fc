//! Addresses that a load takes for itself on a link, as long as it runs.

use std::net::IpAddr;

use fathom_engine::Error;
use fathom_model::{
    MacAddress,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    clock,
    packet::packet_socket::{ReceiveBuffer, Receiver},
};

use super::{
    neighbours::{self, Said},
    outbox::Outbox,
    route::Route,
    sources,
};
use crate::slots::Slots;

/// How often, and how long apart, a probe asks for an address. RFC 5227 waits for seconds, since a switch may not forward yet; this link has
/// just carried an exchange with the server.
const N_PROBES: u32 = 2;
const BETWEEN_PROBES: Nanos = Nanos::from_millis(150);
/// Room for the answers to many probes.
const BUFFER: Bytes = Bytes(4 << 20);

/// The addresses of a load, for which it answers.
#[derive(Debug)]
pub(super) struct Claim {
    receiver: Receiver,
    inbox: ReceiveBuffer,
    slots: Slots,
    mac: MacAddress,
}

impl Claim {
    /// Makes sure that nobody has the addresses, and tells the link that we have them.
    pub(super) fn make(slots: Slots, route: &mut Route, outbox: &mut Outbox) -> Result<Self, Error> {
        if let Some(own) = route.host_addresses()?.into_iter().find(|own| sources::has_address(&slots, *own)) {
            return Err(is_taken(own, "this host has it itself"));
        }
        let what = || format!("answer for the source addresses on {}", route.link.name);
        let system = |cause| Error::system(what(), super::error::PRIVILEGES, cause);
        let receiver = Receiver::open(route.link.index, BUFFER).map_err(system)?;
        receiver.take_all_groups(route.link.index).map_err(system)?;
        let mut claim = Self { receiver, inbox: ReceiveBuffer::default(), slots, mac: route.mac };
        for _ in 0..N_PROBES {
            for address in sources::addresses(&slots) {
                outbox.push(neighbours::probe(route.mac, address))?;
            }
            outbox.flush()?;
            claim.expect_silence(clock::now() + BETWEEN_PROBES, &route.link.name)?;
        }
        for address in sources::addresses(&slots) {
            outbox.push(neighbours::announcement(route.mac, address))?;
        }
        outbox.flush()?;
        Ok(claim)
    }

    /// Waits for somebody to answer a probe.
    fn expect_silence(&mut self, deadline: Nanos, device: &str) -> Result<(), Error> {
        let failed = |cause| Error::System { what: format!("listen on {device}"), cause };
        loop {
            let left = deadline.since(clock::now());
            if left == Nanos::ZERO {
                return Ok(());
            }
            self.receiver.wait(left).map_err(failed)?;
            self.receiver.receive(&mut self.inbox).map_err(failed)?;
            for (frame, _) in self.inbox.frames() {
                if let Some(Said::Owned { address, mac }) = neighbours::parse(frame)
                    && mac != self.mac
                    && sources::has_address(&self.slots, address)
                {
                    return Err(is_taken(address, &format!("{mac} answers for it")));
                }
            }
        }
    }

    /// Answers who has asked for one of the addresses.
    pub(super) fn answer(&mut self, outbox: &mut Outbox) -> Result<(), Error> {
        let failed =
            |cause| Error::System { what: "listen for questions about the source addresses".to_owned(), cause };
        while self.receiver.receive(&mut self.inbox).map_err(failed)? > 0 {
            for (frame, _) in self.inbox.frames() {
                if let Some(Said::Asked { target, by, mac }) = neighbours::parse(frame)
                    && sources::has_address(&self.slots, target)
                    && let Some(answer) = neighbours::answer(self.mac, target, (by, mac))
                {
                    outbox.push(answer)?;
                }
            }
        }
        outbox.flush()
    }
}

fn is_taken(address: IpAddr, by: &str) -> Error {
    Error::Unsupported {
        what: format!("option `source`: {address} belongs to somebody: {by}"),
        hint: Some("choose addresses that nobody has on this link".to_owned()),
    }
}
