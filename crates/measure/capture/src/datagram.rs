//! The UDP datagrams of a capture, and the flows that they belong to.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::Read,
    net::SocketAddr,
};

use etherparse::{TransportSlice, ip_number};
use fathom_model::units::Nanos;

use crate::{
    CaptureFileError, CapturedFrame, ConversationSide, PacketClass, ip_packet::ip_packet, read_frames,
    traffic::after_damage,
};

/// A flow without a datagram for so long is over, as for the connection table of Linux (`nf_conntrack_udp_timeout`).
const IDLE_MAX: Nanos = Nanos::from_secs(30);
/// Flows that are open at the same time. Of more, all are ended, and go on as new ones: their memory has a limit.
const FLOWS_MAX: usize = 1_000_000;

/// A datagram of UDP with its place in its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDatagram<'a> {
    /// The number of its flow in the capture, from 0.
    pub flow: u64,
    /// Who sent it. The client is whoever sent the first datagram of the flow.
    pub side: ConversationSide,
    /// Since 1970.
    pub time: Nanos,
    /// The captured part of its payload.
    pub payload: &'a [u8],
    /// The bytes of the payload that were sent and not captured.
    pub n_cut: usize,
}

/// What a protocol is told of the flows in a capture.
pub trait FlowObserver {
    /// The next datagram of a flow.
    fn on_datagram(&mut self, datagram: &FlowDatagram<'_>);

    /// A packet was captured without its datagram.
    fn on_other(&mut self, class: PacketClass);

    /// A flow is over; its number does not come again.
    fn on_end(&mut self, flow: u64);
}

/// What is known of a flow.
struct Flow {
    number: u64,
    client: SocketAddr,
    last: Nanos,
}

/// The flows that are open at a time of the capture.
struct Flows<O> {
    observer: O,
    /// By their ends, the smaller one first.
    open: HashMap<[SocketAddr; 2], Flow>,
    n_begun: u64,
    time: Nanos,
    swept: Nanos,
}

/// Follows the flows of UDP in a capture file between ends that `is_chosen` names. Returns the observer, and why the file was not
/// read to its end.
///
/// # Errors
/// The file is no capture, or its first frame cannot be read.
pub fn read_datagrams<O: FlowObserver>(
    file: impl Read + Send,
    observer: O,
    is_chosen: impl Fn(SocketAddr, SocketAddr) -> bool,
) -> Result<(O, Option<String>), CaptureFileError> {
    let mut flows = Flows { observer, open: HashMap::new(), n_begun: 0, time: Nanos::ZERO, swept: Nanos::ZERO };
    let end = read_frames(file, |frame| {
        flows.take(&frame, &is_chosen);
        Ok(())
    });
    let damage = after_damage(end)?;
    flows.end_idle(Nanos::MAX);
    Ok((flows.observer, damage))
}

impl<O: FlowObserver> Flows<O> {
    fn take(&mut self, frame: &CapturedFrame<'_>, is_chosen: &impl Fn(SocketAddr, SocketAddr) -> bool) {
        self.time = frame.time.unwrap_or(self.time);
        match datagram(frame) {
            Ok(datagram) if !is_chosen(datagram.source, datagram.destination) => {
                self.observer.on_other(PacketClass::NotChosen);
            }
            Ok(datagram) => self.place(&datagram),
            Err(class) => self.observer.on_other(class),
        }
    }

    fn place(&mut self, datagram: &Datagram<'_>) {
        if self.open.len() >= FLOWS_MAX {
            self.end_idle(Nanos::MAX);
        }
        if self.time.since(self.swept) > IDLE_MAX {
            self.end_idle(self.time);
        }
        let Datagram { source, destination, payload, n_cut } = *datagram;
        let key = if source <= destination { [source, destination] } else { [destination, source] };
        let flow = match self.open.entry(key) {
            Entry::Occupied(entry) if self.time.since(entry.get().last) > IDLE_MAX => {
                self.observer.on_end(entry.get().number);
                let flow = entry.into_mut();
                *flow = Flow { number: self.n_begun, client: source, last: self.time };
                self.n_begun += 1;
                flow
            }
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.n_begun += 1;
                entry.insert(Flow { number: self.n_begun - 1, client: source, last: self.time })
            }
        };
        flow.last = flow.last.max(self.time);
        let side = if source == flow.client { ConversationSide::Client } else { ConversationSide::Server };
        self.observer.on_datagram(&FlowDatagram { flow: flow.number, side, time: self.time, payload, n_cut });
    }

    /// Ends the flows without a datagram for too long, so that only those of a short time are in memory.
    fn end_idle(&mut self, now: Nanos) {
        self.swept = self.time;
        let mut over: Vec<u64> = Vec::new();
        self.open.retain(|_, flow| {
            let is_open = now.since(flow.last) <= IDLE_MAX;
            over.extend((!is_open).then_some(flow.number));
            is_open
        });
        over.sort_unstable();
        for flow in over {
            self.observer.on_end(flow);
        }
    }
}

/// A datagram, as far as it was captured (RFC 768).
#[derive(Debug, PartialEq, Eq)]
struct Datagram<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    payload: &'a [u8],
    n_cut: usize,
}

/// Returns the datagram in a frame, or the class of a frame without one.
fn datagram<'a>(frame: &CapturedFrame<'a>) -> Result<Datagram<'a>, PacketClass> {
    let ip = ip_packet(frame)?;
    match &ip.transport {
        Some(TransportSlice::Udp(udp)) => Ok(Datagram {
            source: SocketAddr::new(ip.source, udp.source_port()),
            destination: SocketAddr::new(ip.destination, udp.destination_port()),
            payload: udp.payload(),
            n_cut: ip.n_cut,
        }),
        None if ip.protocol == ip_number::UDP => Err(ip.broken),
        _ => Err(PacketClass::NotUdp),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use crate::LinkType;

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl FlowObserver for Seen {
        fn on_datagram(&mut self, datagram: &FlowDatagram<'_>) {
            let FlowDatagram { flow, side, payload, n_cut, .. } = datagram;
            self.0.push(format!("{flow} {side:?} {} {n_cut}", String::from_utf8_lossy(payload)));
        }

        fn on_other(&mut self, class: PacketClass) {
            self.0.push(format!("{class:?}"));
        }

        fn on_end(&mut self, flow: u64) {
            self.0.push(format!("{flow} ends"));
        }
    }

    fn packet(from: (u8, u16), to: (u8, u16), payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4([198, 18, 0, from.0], [198, 18, 0, to.0], 64).udp(from.1, to.1);
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    fn seen(packets: &[(u64, Vec<u8>, usize)]) -> Vec<String> {
        let mut flows = Flows {
            observer: Seen::default(),
            open: HashMap::new(),
            n_begun: 0,
            time: Nanos::ZERO,
            swept: Nanos::ZERO,
        };
        for (second, bytes, captured) in packets {
            let time = Some(Nanos::from_secs(*second));
            let bytes = &bytes[..bytes.len() - captured];
            let original_length = bytes.len() + captured;
            let frame = CapturedFrame { number: 1, time, link: LinkType(101), bytes, original_length };
            flows.take(&frame, &|one: SocketAddr, other: SocketAddr| one.port() == 53 || other.port() == 53);
        }
        flows.end_idle(Nanos::MAX);
        flows.observer.0
    }

    #[test]
    fn datagrams_belong_to_the_flow_of_their_ends_until_it_has_been_idle() {
        let (client, server) = ((1, 4000), (2, 53));
        let found = seen(&[
            (1000, packet(client, server, b"ask"), 0),
            (1001, packet(server, client, b"answer"), 0),
            (1001, packet((1, 4001), server, b"other"), 0),
            (1001, packet((1, 4001), (2, 123), b"time"), 0),
            (1040, packet(client, server, b"again"), 2),
        ]);
        let wanted = [
            "0 Client ask 0",
            "0 Server answer 0",
            "1 Client other 0",
            "NotChosen",
            "0 ends",
            "1 ends",
            "2 Client aga 2",
            "2 ends",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn packets_without_a_datagram_have_a_class() {
        let mut fragment = packet((1, 1), (2, 53), b"text");
        fragment[6] = 0x20;
        let mut tcp = Vec::new();
        PacketBuilder::ipv4([1; 4], [2; 4], 64).tcp(53, 1, 7, 512).write(&mut tcp, b"").unwrap();
        let cut = packet((1, 1), (2, 53), b"");
        assert_eq!(seen(&[(1, fragment, 0), (1, tcp, 0), (1, cut, 4)]), ["Fragment", "NotUdp", "CutHeader"]);
    }
}
