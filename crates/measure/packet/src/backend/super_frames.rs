//! Frames through an `AF_PACKET` socket as one super-buffer, which the kernel segments in front of the device.
//!
//! The costs of a batch are then paid once and not per frame: the system call, the way through the stack and, on a veth, the
//! softirq that receives the frames at the other end.

use std::fs;

use fathom_engine::{Error, WorkerHandle};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    netlink::{Netlink, ethtool},
    packet::packet_socket::{OfferResult, Queueing},
    socket::super_frame::{SegmentCut, Sender, segments_of},
};

use super::{Backend, Generator, OutputDevice, WorkerLoad, counter, send_progress::SendProgress, unsupported};
use crate::craft::{ChangePer, FrameSet};
use fathom_wire::{ChecksumSum, ETHERTYPE_IPV4, Ethernet, Ipv4, Mark, MarkOffsets, PROTOCOL_UDP, Udp};

/// A packet socket whose frames the kernel segments.
#[derive(Debug)]
pub(super) struct SuperFrames;

#[derive(Debug)]
struct SuperFrameGenerator {
    sender: Sender,
    progress: SendProgress,
    /// The headers of a super-buffer of one frame, of two, and so on.
    headers: Vec<[u8; MarkOffsets::START]>,
    /// The super-buffer. Only its headers and marks change.
    bytes: Vec<u8>,
    /// Payload bytes per frame.
    payload: usize,
}

/// The longest wait for room in the send buffer between two checks for the end of the trial.
const ROOM: Nanos = Nanos::from_millis(1);
/// The feature of a device that accepts unsegmented UDP super-buffers.
const UDP_SEGMENTATION_FEATURE: &str = "tx-udp-segmentation";
/// The name of the queueing discipline of a device without a queue.
const NO_QUEUE: &str = "noqueue";
/// The first Linux version that segments frames from a packet socket.
const KERNEL_MIN: (u32, u32) = (6, 2);

impl Backend for SuperFrames {
    fn option_value(&self) -> &'static str {
        "socket"
    }

    fn description(&self) -> &'static str {
        "a packet socket (super-buffers that the kernel cuts)"
    }

    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn Generator>, Error> {
        require_segmentation(port)?;
        let first = first_frame(&load.frames).map_err(|what| unsupported(what.to_owned()))?;
        let payload = first.len() - MarkOffsets::START;
        let most = segments_of(payload);
        let length = |bytes: usize| u16::try_from(bytes).expect("a frame has less than 64 KiB");
        let cut = SegmentCut { udp_at: length(Ethernet::LENGTH + Ipv4::LENGTH), payload: length(payload) };
        let what = || format!("open a packet socket on {}", port.name);
        let sender = Sender::open(port.ifindex, cut, &port.permit)
            .map_err(|cause| Error::system(what(), "CAP_NET_RAW", cause))?;
        let headers = (1..=most).map(|n| headers(&first, n)).collect();
        let bytes = [&first[..MarkOffsets::START], &first[MarkOffsets::START..].repeat(most)].concat();
        Ok(Box::new(SuperFrameGenerator { sender, progress: SendProgress::of(load), headers, bytes, payload }))
    }
}

/// Returns an error unless the kernel itself segments frames in front of this device and counts each of them.
fn require_segmentation(port: &OutputDevice) -> Result<(), Error> {
    let name = &port.name;
    let failed = |cause| Error::System { what: format!("ask how frames leave {name}"), cause };
    if port.queueing == Queueing::Discipline {
        return Err(unsupported("the queueing discipline is to see single frames".to_owned()));
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release).is_none_or(|version| version < KERNEL_MIN) {
        return Err(unsupported(format!("it takes Linux {}.{}", KERNEL_MIN.0, KERNEL_MIN.1)));
    }
    let link = Netlink::open().and_then(|mut netlink| netlink.link(name)).map_err(failed)?;
    if link.qdisc.as_deref() != Some(NO_QUEUE) {
        let qdisc = link.qdisc.unwrap_or_else(|| "a queueing discipline".to_owned());
        return Err(unsupported(format!("{qdisc} is in front of {name} and would see them unsegmented")));
    }
    let features = ethtool::Device::open(name).and_then(|device| device.features()).map_err(failed)?;
    if features.iter().any(|feature| feature.name == UDP_SEGMENTATION_FEATURE && feature.active) {
        return Err(unsupported(format!("{name} would pass them on unsegmented ({UDP_SEGMENTATION_FEATURE})")));
    }
    Ok(())
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Returns the first frame if the kernel writes all others as requested, or why it would not.
fn first_frame(blueprint: &FrameSet) -> Result<Vec<u8>, &'static str> {
    let [shape] = blueprint.templates.as_slice() else { return Err("they are not of one size") };
    if blueprint.n_flows > 1 {
        return Err("one long frame is of one flow");
    }
    let is_constant = shape.changes.iter().all(|edit| edit.per == ChangePer::Flow);
    if shape.mark_at != Some(MarkOffsets::START) || !is_constant {
        return Err("more than their number differs, or they are not plain UDP over IPv4");
    }
    let mut first = shape.bytes.clone();
    shape.write(&mut first, &blueprint.frame_index(0, 0, [0; Mark::LENGTH]));
    // Other headers than those the kernel writes would not be sent as requested.
    let (ethernet, ip, udp) = (&first[..Ethernet::LENGTH], &first[Ethernet::LENGTH..], Ethernet::LENGTH + Ipv4::LENGTH);
    let half = |at: usize| usize::from(u16::from_be_bytes([first[at], first[at + 1]]));
    let is_udp = ethernet.ends_with(&ETHERTYPE_IPV4.to_be_bytes()) && ip[0] == 0x45 && ip[9] == PROTOCOL_UDP;
    let has_lengths = half(Ethernet::LENGTH + 2) == ip.len() && half(udp + 4) == first.len() - udp;
    // Identification 0 and DF: the identification has no meaning then (RFC 6864 section 4.1), so the kernel may increment it.
    let is_atomic = ip[4..8] == [0, 0, 0x40, 0];
    let has_sum = ChecksumSum::default().add_bytes(&ip[..Ipv4::LENGTH]).checksum() == 0;
    // The UDP checksum depends on the mark, so it is among the checksums that change.
    let has_udp_sum =
        shape.checksums.iter().enumerate().any(|(n, sum)| sum.at == udp + 6 && shape.mark_cover.contains(n));
    let is_plain = is_udp && has_lengths && is_atomic && has_sum && has_udp_sum;
    if is_plain { Ok(first) } else { Err("they are not plain UDP over IPv4 with lengths and checksums that are right") }
}

/// Returns the headers of `n` frames in one super-buffer.
fn headers(first: &[u8], n: usize) -> [u8; MarkOffsets::START] {
    let mut headers: [u8; MarkOffsets::START] = *first.first_chunk().expect("a frame is longer than its headers");
    let payload = n * (first.len() - MarkOffsets::START);
    let length = |bytes: usize| u16::try_from(bytes).expect("a datagram has less than 64 KiB");
    let (_, ip) = headers.split_at_mut(Ethernet::LENGTH);
    let (ip, udp) = ip.split_at_mut(Ipv4::LENGTH);
    ip[2..4].copy_from_slice(&length(Ipv4::LENGTH + Udp::LENGTH + payload).to_be_bytes());
    ip[10..12].fill(0);
    let sum = ChecksumSum::default().add_bytes(ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let datagram = length(Udp::LENGTH + payload);
    udp[4..6].copy_from_slice(&datagram.to_be_bytes());
    let pseudo = ChecksumSum::default().add_bytes(&ip[12..]).add_word(PROTOCOL_UDP.into()).add_word(datagram);
    udp[6..8].copy_from_slice(&pseudo.value().to_be_bytes());
    headers
}

impl SuperFrameGenerator {
    /// Writes the next frames as one super-buffer; returns its length.
    fn write(&mut self, n: usize) -> usize {
        let now = clock::now();
        let (headers, payloads) = self.bytes.split_at_mut(MarkOffsets::START);
        headers.copy_from_slice(&self.headers[n - 1]);
        for (payload, (flow, sequence)) in payloads.chunks_exact_mut(self.payload).zip(self.progress.upcoming()).take(n)
        {
            payload[..Mark::LENGTH].copy_from_slice(&self.progress.mark(flow, sequence, now).bytes());
        }
        MarkOffsets::START + n * self.payload
    }
}

impl Generator for SuperFrameGenerator {
    fn span(&self) -> Option<(Nanos, Nanos)> {
        self.progress.span()
    }

    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        while !self.progress.is_over(worker) {
            let n = self.progress.wait_for_due(worker, self.headers.len());
            if n == 0 {
                continue;
            }
            let length = self.write(n);
            match self.sender.send(&self.bytes[..length])? {
                // The device itself counts the frames that it drops, one by one.
                OfferResult::Accepted(_) | OfferResult::Dropped => {
                    worker.add(counter::SENT, n as u64);
                    self.progress.advance(worker, n);
                }
                OfferResult::Busy => {
                    self.sender.wait(ROOM)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_its_version() {
        for (release, expected) in [("6.18.44-fc-v657\n", Some((6, 18))), ("5.4\n", Some((5, 4))), ("", None)] {
            assert_eq!(version(release), expected, "{release:?}");
        }
    }
}
