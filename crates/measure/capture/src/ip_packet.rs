//! The IP packet in a frame, as far as it was captured.

use std::net::IpAddr;

use etherparse::{IpNumber, LaxNetSlice, LaxSlicedPacket, TransportSlice};

use crate::{CapturedFrame, NetworkPacket, counts::PacketClass};

/// A whole packet or its captured begin; no fragment.
pub(crate) struct IpPacket<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: IpNumber,
    /// Absent if its headers are not whole, or if the protocol is unknown.
    pub(crate) transport: Option<TransportSlice<'a>>,
    /// The bytes that were sent and not captured.
    pub(crate) n_cut: usize,
    /// The class of a packet whose headers are not whole.
    pub(crate) broken: PacketClass,
}

/// Returns the packet in a frame, or the class of a frame without one.
pub(crate) fn ip_packet<'a>(frame: &CapturedFrame<'a>) -> Result<IpPacket<'a>, PacketClass> {
    let packet = match frame.link.packet(frame.bytes) {
        NetworkPacket::Ip(packet) => packet,
        NetworkPacket::Other => return Err(PacketClass::NotIp),
        NetworkPacket::Cut => return Err(PacketClass::CutHeader),
        NetworkPacket::UnknownLink => return Err(PacketClass::UnknownLink),
    };
    let is_cut = frame.bytes.len() < frame.original_length;
    let broken = if is_cut { PacketClass::CutHeader } else { PacketClass::Malformed };
    let sliced = LaxSlicedPacket::from_ip(packet).map_err(|_| broken)?;
    let (source, destination, n_length) = match &sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let (source, destination) = (header.source_addr().into(), header.destination_addr().into());
            (source, destination, usize::from(header.total_len()))
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let (source, destination) = (header.source_addr().into(), header.destination_addr().into());
            (source, destination, header.slice().len() + usize::from(header.payload_length()))
        }
        _ => return Err(PacketClass::NotIp),
    };
    let payload = sliced.ip_payload().ok_or(broken)?;
    if payload.fragmented {
        return Err(PacketClass::Fragment);
    }
    let (protocol, n_cut) = (payload.ip_number, n_length.saturating_sub(packet.len()));
    Ok(IpPacket { source, destination, protocol, transport: sliced.transport, n_cut, broken })
}
