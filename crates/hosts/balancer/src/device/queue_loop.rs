//! The thread of one queue: receive, decide, tell the verdicts.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    netlink::packet_queue::{PacketInbox, PacketQueue, PacketVerdict, QueuedPacket, VerdictBuffer},
    packet::tun::{OpenChecksum, TunDevice},
};

use super::{
    path_counters::{PathCounters, add},
    settings::VerdictGrouping,
    verdict_order::{Departure, VerdictOrder, VerdictSink},
};
use crate::{BalancerWorker, Decision, Defect, Defects, classify};

/// The longest wait between two looks at the stop flag.
const WAIT_MAX: Nanos = Nanos::from_millis(50);
/// A packet that nothing overtakes leaves after this time: longer than the gap between packets of a flow that is worth reordering.
const OVERTAKEN_MAX: Nanos = Nanos::from_millis(10);
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What the thread of a queue works with.
pub(super) struct QueueLoop {
    pub(super) queue: PacketQueue,
    pub(super) inbox: PacketInbox,
    pub(super) worker: BalancerWorker,
    pub(super) tun: Arc<TunDevice>,
    pub(super) tun_index: u32,
    pub(super) defects: Defects,
    pub(super) grouping: VerdictGrouping,
    pub(super) counters: Arc<PathCounters>,
}

/// Sends each verdict in a message of its own call, or collects them.
struct Telling<'a> {
    queue: &'a PacketQueue,
    buffer: VerdictBuffer,
    grouping: VerdictGrouping,
    n_messages: u64,
    /// The kernel has no memory for verdicts; the packets stay in the queue.
    failed: Option<fathom_sys::Error>,
}

impl Telling<'_> {
    fn flush(&mut self) {
        if let Err(error) = self.queue.decide(&mut self.buffer) {
            self.failed = Some(error);
        }
    }

    fn told(&mut self) {
        self.n_messages += 1;
        if self.grouping == VerdictGrouping::Single {
            self.flush();
        }
    }
}

impl VerdictSink for Telling<'_> {
    fn one(&mut self, id: u32, verdict: PacketVerdict) {
        self.buffer.one(id, verdict);
        self.told();
    }

    fn all_until(&mut self, id: u32, verdict: PacketVerdict) {
        self.buffer.all_until(id, verdict);
        self.told();
    }
}

impl QueueLoop {
    /// Decides packets until the device ends; then those that still wait.
    ///
    /// # Errors
    /// If the queue can no longer be read, or takes no more verdicts.
    pub(super) fn run(mut self, is_over: &AtomicBool) -> fathom_sys::Result<()> {
        clock::sleep_finely();
        let queue = self.queue;
        let mut telling = Telling {
            buffer: VerdictBuffer::of(&queue),
            queue: &queue,
            grouping: self.grouping,
            n_messages: 0,
            failed: None,
        };
        let mut order = VerdictOrder::new(self.grouping);
        let mut path = DataPath {
            worker: self.worker,
            tun: self.tun,
            tun_index: self.tun_index,
            defects: self.defects,
            counters: Arc::clone(&self.counters),
        };
        loop {
            let is_last = is_over.load(Ordering::Relaxed);
            let wait = order.next_due().map_or(WAIT_MAX, |due| due.since(clock::now()).min(WAIT_MAX));
            if !is_last {
                queue.wait(wait)?;
            }
            let n_received = queue.receive(&mut self.inbox)?;
            let now = clock::now();
            for packet in self.inbox.packets() {
                let (verdict, departure) = path.decide(&packet, now);
                order.add(packet.id, verdict, departure, &mut telling);
                path.inject_released();
            }
            order.flush(now, &mut telling);
            telling.flush();
            if n_received > 0 {
                add(&self.counters.receives, 1);
            }
            add(&self.counters.messages, std::mem::take(&mut telling.n_messages));
            if let Some(error) = telling.failed.take() {
                return Err(error);
            }
            if is_last && n_received == 0 {
                order.release_all(&mut telling);
                telling.flush();
                return Ok(());
            }
        }
    }
}

/// The decisions about the packets of one queue, with the defects of the data path.
struct DataPath {
    worker: BalancerWorker,
    tun: Arc<TunDevice>,
    tun_index: u32,
    defects: Defects,
    counters: Arc<PathCounters>,
}

impl DataPath {
    fn decide(&mut self, packet: &QueuedPacket<'_>, now: Nanos) -> (PacketVerdict, Departure) {
        let counters = &self.counters;
        add(&counters.packets, 1);
        if packet.has_segments {
            add(&counters.with_segments, 1);
        }
        if packet.length.0 > packet.bytes.len() as u64 {
            add(&counters.cut, 1);
        }
        let verdict = match self.worker.decide(packet.bytes, now) {
            Decision::Forward { mark } => PacketVerdict::Mark(mark),
            Decision::Pass => PacketVerdict::Pass,
            // Of a fragment that waits, the balancer has a copy.
            Decision::Drop(_) | Decision::Hold => PacketVerdict::Drop,
        };
        // What comes in again was harmed already.
        if packet.input == self.tun_index || !matches!(verdict, PacketVerdict::Mark(_)) {
            return (verdict, Departure::Now);
        }
        self.harm(packet, verdict, now)
    }

    /// Draws what the defects do to a packet that is forwarded.
    fn harm(&self, packet: &QueuedPacket<'_>, verdict: PacketVerdict, now: Nanos) -> (PacketVerdict, Departure) {
        let (worker, defects) = (&self.worker, &self.defects);
        if worker.draw(Defect::Drop, defects.drop) {
            return (PacketVerdict::Drop, Departure::Now);
        }
        let open = if packet.is_checksum_open { open_checksum(packet.bytes) } else { None };
        let is_whole = packet.length.0 == packet.bytes.len() as u64 && !packet.has_segments;
        // Of a packet that was cut, that has several segments, or whose checksum nobody can calculate, there is no copy.
        let can_be_copied = is_whole && open.is_some() == packet.is_checksum_open;
        if can_be_copied && worker.draw(Defect::Duplicate, defects.duplicate) {
            self.inject(packet.bytes, open);
        }
        if let Some((one_in, later)) = defects.delay
            && worker.draw(Defect::Delay, Some(one_in))
        {
            return (verdict, Departure::At(now + later));
        }
        if worker.draw(Defect::Reorder, defects.reorder) {
            return (verdict, Departure::Overtaken(now + OVERTAKEN_MAX));
        }
        (verdict, Departure::Now)
    }

    /// Lets the packets come in again that waited for the one that was decided last.
    fn inject_released(&self) {
        self.worker.released().for_each(|packet| self.inject(packet, None));
    }

    fn inject(&self, packet: &[u8], checksum: Option<OpenChecksum>) {
        let is_taken = self.tun.inject(packet, checksum).is_ok();
        add(if is_taken { &self.counters.injected } else { &self.counters.not_injected }, 1);
    }
}

/// The place of the checksum of a packet of TCP or UDP.
fn open_checksum(bytes: &[u8]) -> Option<OpenChecksum> {
    let packet = classify(bytes).ok()?;
    let start = u16::try_from(bytes.len() - packet.transport.len()).ok()?;
    match packet.key.protocol {
        TCP => Some(OpenChecksum { start, offset: 16 }),
        UDP => Some(OpenChecksum { start, offset: 6 }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_packet_is_found_behind_its_options() {
        // A header of 24 bytes with an option, and 8 of UDP.
        let mut packet = vec![0x46, 0, 0, 32, 0, 0, 0, 0, 64, UDP, 0, 0, 198, 18, 0, 1, 198, 18, 8, 1, 1, 1, 1, 0];
        packet.extend([0, 7, 0, 9, 0, 8, 0, 0]);
        assert_eq!(open_checksum(&packet), Some(OpenChecksum { start: 24, offset: 6 }));
        packet[9] = 47;
        assert_eq!(open_checksum(&packet), None);
    }
}
