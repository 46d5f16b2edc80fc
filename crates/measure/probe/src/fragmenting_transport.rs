//! A transport that sends too long packets in fragments.

use fathom_model::units::Nanos;

use super::{
    driver::{CapturedPacket, ProbeTransport, SendOutcome},
    fragments::Fragments,
};

/// Sends long packets in fragments over another transport.
#[derive(Debug)]
pub struct FragmentingTransport<L> {
    transport: L,
    payload_max: u16,
    fragment: Vec<u8>,
}

impl<L> FragmentingTransport<L> {
    /// Fragments carry at most `payload_max` bytes after the IP header, in a multiple of eight bytes.
    pub fn new(line: L, payload_max: u16) -> Self {
        Self { transport: line, payload_max, fragment: Vec::new() }
    }
}

/// The wait for a full queue between two fragments of a packet. A queue accepts a thousand packets in that time.
const QUEUE_PAUSE: Nanos = Nanos::from_micros(100);
const QUEUE_PAUSES: u32 = 1_000;

impl<L: ProbeTransport> FragmentingTransport<L> {
    fn send_fragment(&mut self) -> Result<SendOutcome, L::Error> {
        for _ in 0..QUEUE_PAUSES {
            match self.transport.send(&self.fragment)? {
                SendOutcome::WouldBlock => self.transport.wait(self.transport.now() + QUEUE_PAUSE)?,
                other => return Ok(other),
            }
        }
        Ok(SendOutcome::WouldBlock)
    }
}

impl<L: ProbeTransport> ProbeTransport for FragmentingTransport<L> {
    type Error = L::Error;

    fn now(&self) -> Nanos {
        self.transport.now()
    }

    fn send(&mut self, packet: &[u8]) -> Result<SendOutcome, L::Error> {
        let Some(mut fragments) = Fragments::of(packet, self.payload_max) else { return self.transport.send(packet) };
        let mut since = None;
        while fragments.write_next(&mut self.fragment) {
            match self.send_fragment()? {
                SendOutcome::Sent(at) => since = since.or(Some(at)),
                other => return Ok(other),
            }
        }
        Ok(since.map_or(SendOutcome::WouldBlock, SendOutcome::Sent))
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<Option<CapturedPacket>, L::Error> {
        self.transport.receive(room)
    }

    fn wait(&mut self, until: Nanos) -> Result<(), L::Error> {
        self.transport.wait(until)
    }

    fn n_dropped_replies(&self) -> Option<u64> {
        self.transport.n_dropped_replies()
    }
}
