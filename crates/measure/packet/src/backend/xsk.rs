//! Frames through AF_XDP: written to memory that the kernel reads. No system call per batch is needed if the driver reads it
//! itself.

use fathom_engine::{Error, WorkerHandle};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    packet::xsk::{CHUNK, Mode, Queue, Transmitter},
};

use super::{
    Backend, Generator, OutputDevice, WorkerLoad, counter, require_bypass,
    send_progress::{LastTemplate, SendProgress},
    unsupported,
};

/// AF_XDP in one of its two modes.
#[derive(Debug)]
pub(super) struct Xsk(pub(super) Mode);

#[derive(Debug)]
struct XskGenerator {
    transmitter: Transmitter,
    progress: SendProgress,
    last_templates: Vec<LastTemplate>,
}

/// Frames written before the kernel is notified: as many as it takes in one call (`TX_BATCH_SIZE`).
const BATCH: usize = 32;
/// How long the last frames may take to leave.
const DRAIN: Nanos = Nanos::from_secs(1);

impl Backend for Xsk {
    fn option_value(&self) -> &'static str {
        "xsk"
    }

    fn description(&self) -> &'static str {
        match self.0 {
            Mode::ZeroCopy => "AF_XDP without copies",
            Mode::Copy => "AF_XDP with copies",
        }
    }

    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn Generator>, Error> {
        require_bypass(port)?;
        let length = load.frames.longest();
        if length > CHUNK {
            return Err(unsupported(format!("frames of {length} bytes do not fit into chunks of {CHUNK}")));
        }
        let number = u32::try_from(load.share.idx).unwrap_or(u32::MAX);
        let what = || format!("open an AF_XDP socket on queue {number} of {}", port.name);
        let transmitter = Transmitter::open(Queue { ifindex: port.ifindex, number }, self.0, &port.permit)
            .map_err(|cause| Error::system(what(), "CAP_NET_RAW and CAP_NET_ADMIN", cause))?;
        let held = vec![None; Transmitter::capacity()];
        Ok(Box::new(XskGenerator { transmitter, progress: SendProgress::of(load), last_templates: held }))
    }
}

impl XskGenerator {
    /// Writes and queues up to `n` frames; returns how many there was room for.
    fn submit(&mut self, n: usize) -> usize {
        let now = clock::now();
        let mut submitted = 0;
        for (flow, sequence) in self.progress.upcoming().take(n) {
            let Some(chunk) = self.transmitter.take() else { break };
            let held = &mut self.last_templates[chunk.number()];
            let length = self.progress.write(self.transmitter.bytes_mut(&chunk), held, flow, sequence, now);
            self.transmitter.submit(chunk, length);
            submitted += 1;
        }
        submitted
    }

    /// Counts the submitted frames that have left so far.
    fn count_sent(&self, worker: &WorkerHandle<'_>, n_submitted: u64) {
        worker.raise(counter::SENT, n_submitted - self.transmitter.n_lent() as u64);
    }
}

impl Generator for XskGenerator {
    fn span(&self) -> Option<(Nanos, Nanos)> {
        self.progress.span()
    }

    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        let mut n_submitted = 0;
        while !self.progress.is_over(worker) {
            let n = self.progress.wait_for_due(worker, BATCH);
            let n = self.submit(n);
            self.progress.advance(worker, n);
            n_submitted += n as u64;
            if n > 0 || self.transmitter.n_lent() > 0 {
                self.transmitter.push()?;
                self.count_sent(worker, n_submitted);
            }
        }
        let deadline = clock::now() + DRAIN;
        while self.transmitter.n_lent() > 0 && clock::now() < deadline {
            self.transmitter.push()?;
        }
        self.count_sent(worker, n_submitted);
        // Frames that the device has not taken by now count as not sent.
        worker.add(counter::REFUSED, self.transmitter.n_lent() as u64);
        Ok(())
    }
}
