//! The way of requests from the capture to the workers. What waits in it is bounded by its bytes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc::{Receiver, Sender, channel},
};

use fathom_model::units::Nanos;

use crate::RecordedExchange;

/// The most bytes of requests that wait, all workers together.
const WAITING_MAX: usize = 64 << 20;
/// What a request takes besides its bytes.
const OVERHEAD: usize = 256;

/// A copy of a connection, over HTTP/2 of one of its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) connection: u64,
    pub(super) lane: u32,
    pub(super) copy: usize,
}

/// News for a worker.
#[derive(Debug)]
pub(super) enum LiveEvent {
    /// A request of a session, and when its last byte was captured, on the monotonic clock.
    Request(SessionKey, Arc<RecordedExchange>, Nanos),
    /// The connection is over.
    Ended(SessionKey),
}

/// The end of the capture.
#[derive(Debug)]
pub(super) struct QueueSender {
    workers: Vec<Sender<LiveEvent>>,
    n_waiting: Arc<AtomicUsize>,
}

/// The end of one worker.
#[derive(Debug)]
pub(super) struct QueueReceiver {
    events: Receiver<LiveEvent>,
    n_waiting: Arc<AtomicUsize>,
}

/// Creates the queues of so many workers.
pub(super) fn queues(n_workers: usize) -> (QueueSender, Vec<QueueReceiver>) {
    let n_waiting = Arc::new(AtomicUsize::new(0));
    let (workers, receivers): (Vec<_>, Vec<_>) = (0..n_workers).map(|_| channel()).unzip();
    let receiver = |events| QueueReceiver { events, n_waiting: Arc::clone(&n_waiting) };
    (QueueSender { workers, n_waiting: Arc::clone(&n_waiting) }, receivers.into_iter().map(receiver).collect())
}

fn size(exchange: &RecordedExchange) -> usize {
    exchange.request.len() + exchange.answer.as_ref().map_or(0, |answer| answer.head.len()) + OVERHEAD
}

impl QueueSender {
    /// Whether so many copies of a request may wait besides those that do.
    pub(super) fn has_room_for(&self, exchange: &RecordedExchange, n_copies: usize) -> bool {
        self.n_waiting.load(Ordering::Relaxed) + n_copies * size(exchange) <= WAITING_MAX
    }

    /// Gives a request to the worker of its session.
    pub(super) fn send(&self, key: SessionKey, exchange: &Arc<RecordedExchange>, due: Nanos) {
        self.n_waiting.fetch_add(size(exchange), Ordering::Relaxed);
        // A worker that has ended needs no requests; they are counted as not sent.
        self.worker(key).send(LiveEvent::Request(key, Arc::clone(exchange), due)).ok();
    }

    /// Says that a connection is over.
    pub(super) fn end(&self, key: SessionKey) {
        self.worker(key).send(LiveEvent::Ended(key)).ok();
    }

    /// All requests of a session go to one worker.
    fn worker(&self, key: SessionKey) -> &Sender<LiveEvent> {
        let number = key.connection.wrapping_add(u64::from(key.lane)).wrapping_add(key.copy as u64);
        let number = number % self.workers.len() as u64;
        &self.workers[usize::try_from(number).unwrap_or(0)]
    }
}

impl QueueReceiver {
    /// Returns the next event, if there is one.
    pub(super) fn next(&self) -> Option<LiveEvent> {
        self.events.try_recv().ok()
    }

    /// A request was sent or given up: it waits no longer.
    pub(super) fn release(&self, exchange: &RecordedExchange) {
        self.n_waiting.fetch_sub(size(exchange), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sending::spooled_exchange::tests::exchange;

    #[test]
    fn the_requests_of_a_session_come_to_one_worker_in_their_order_until_too_many_wait() {
        let (sender, receivers) = queues(3);
        let large = Arc::new(exchange(7, 0, &"x".repeat(1 << 20)));
        let key = SessionKey { connection: 7, lane: 2, copy: 1 };
        let mut n = 0;
        while sender.has_room_for(&large, 1) {
            sender.send(key, &large, Nanos(n));
            n += 1;
        }
        assert_eq!((n, sender.has_room_for(&large, 2)), (63, false));
        sender.end(key);
        let busy: Vec<&QueueReceiver> = receivers
            .iter()
            .filter(|receiver| {
                let Some(LiveEvent::Request(of, exchange, due)) = receiver.next() else { return false };
                receiver.release(&exchange);
                (of, due) == (key, Nanos(0))
            })
            .collect();
        assert_eq!(busy.len(), 1);
        assert!(sender.has_room_for(&large, 1), "one has left");
        let rest: Vec<LiveEvent> = std::iter::from_fn(|| busy[0].next()).collect();
        assert!(matches!(rest[62], LiveEvent::Ended(of) if of == key) && rest.len() == 63, "{}", rest.len());
    }
}
