//! The transfer phase of a test: threads that stream, reports of intervals, and the conditions that end it.
//!
//! It is the same for both sides, except that only a client ends by time or volume. It does not know how the streams were opened.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use fathom_engine::{Stop, WorkerCounters};
use fathom_model::{
    Side,
    units::{Nanos, approximate},
};
use fathom_sys::{
    clock::{self, CpuTimes},
    process::threads,
    socket::{self},
};

use super::{
    CpuUse, Error, Omitted, OpenStream, Parameters, TransportProtocol,
    control::ControlConnection,
    counts::{Interval, Iperf3Outcome, StreamCounts, StreamOutcome, StreamRole, TcpExtremes, TcpState, TestObserver},
    data::{self, Counter, SlotContext, StreamEnd},
    error::code,
    wire::TestState,
};
use fathom_transport::stream::is_file_error;

/// Limits of a test apart from its parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLimits {
    /// The reporting interval; `None` for a single report at the end.
    pub(crate) interval: Option<Nanos>,
    /// How long a receiver may receive nothing.
    pub(crate) idle: Nanos,
    /// The time after which a server ends a test that its client does not end.
    pub(crate) time_max: Nanos,
    /// The limit of a server in bits per second for all streams together, and the averaging time.
    pub(crate) rate: Option<(u64, Nanos)>,
}

/// A test whose streams are open.
pub(crate) struct TransferRun<'a> {
    pub(crate) side: Side,
    pub(crate) parameters: &'a Parameters,
    pub(crate) streams: &'a [OpenStream],
    pub(crate) limits: RunLimits,
}

/// The time between two checks of the counters if a volume ends the test.
const POLL_INTERVAL_VOLUME: Nanos = Nanos::from_millis(1);
/// The time between two checks otherwise.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// How long the control connection may take to report why the streams broke.
const BROKEN: Nanos = Nanos::from_secs(2);
/// How long to wait for late datagrams after the end, and how long none may have arrived before the wait ends.
const DRAIN_MAX: Nanos = Nanos::from_millis(200);
const DRAIN_QUIET: Nanos = Nanos::from_millis(10);

/// The state shared by the threads: their own counters, and when to stop.
struct SharedProgress {
    slots: Vec<WorkerCounters>,
    /// Senders stop before receivers, so that data in flight arrives.
    sending_over: AtomicBool,
    receiving_over: AtomicBool,
    n_done: AtomicUsize,
    n_broken: AtomicUsize,
    /// Whether a sender has reached the end of its file.
    is_file_sent: AtomicBool,
    /// The error of a file operation.
    file_failure: Mutex<Option<fathom_sys::Error>>,
}

impl SharedProgress {
    fn reading(&self, place: usize, open: &OpenStream) -> StreamCounts {
        let read = |counter: Counter| self.slots[place].read(counter as usize);
        let is_watched = open.stream.role == StreamRole::Sender;
        StreamCounts {
            bytes: read(Counter::Bytes),
            packets: read(Counter::Packets),
            lost: read(Counter::Lost),
            out_of_order: read(Counter::OutOfOrder),
            jitter: Nanos(read(Counter::JitterNs)),
            tcp: if is_watched { TcpState::of(&open.socket) } else { None },
        }
    }

    /// The bytes received on all streams.
    fn received(&self, streams: &[OpenStream]) -> u64 {
        let receivers = self.slots.iter().zip(streams).filter(|(_, open)| open.stream.role == StreamRole::Receiver);
        receivers.map(|(slot, _)| slot.read(Counter::Bytes as usize)).sum()
    }
}

/// The progress of a test.
struct RunProgress {
    start: Nanos,
    /// When the counted part started; `None` before that.
    counts_from: Option<Nanos>,
    base: Vec<StreamCounts>,
    last: Vec<StreamCounts>,
    last_at: Nanos,
    extremes: Vec<TcpExtremes>,
    next_report: Nanos,
    last_received: (u64, Nanos),
    rate_from: (u64, Nanos),
    broken_since: Option<Nanos>,
}

impl TransferRun<'_> {
    /// Streams until the test is over. Keeps the counts, whatever ended it.
    pub(crate) fn run(
        &self,
        control: &mut ControlConnection,
        watch: &mut dyn TestObserver,
    ) -> (Iperf3Outcome, Result<(), Error>) {
        let shared = SharedProgress {
            slots: self.streams.iter().map(|_| WorkerCounters::default()).collect(),
            sending_over: AtomicBool::new(false),
            receiving_over: AtomicBool::new(false),
            n_done: AtomicUsize::new(0),
            n_broken: AtomicUsize::new(0),
            is_file_sent: AtomicBool::new(false),
            file_failure: Mutex::default(),
        };
        let start = clock::now();
        let cpu_before = clock::thread_cpu_times();
        let mut standing = self.initial_progress(start);
        let (ended, cpu, why) = thread::scope(|scope| {
            let begin = |(place, open)| {
                let shared = &shared;
                let started = threads::start_within(scope, "stream", move || self.stream(shared, place, open, start));
                started.inspect_err(|_| {
                    shared.n_broken.fetch_add(1, Ordering::Relaxed);
                    shared.n_done.fetch_add(1, Ordering::Relaxed);
                })
            };
            let threads: Vec<_> = self.streams.iter().enumerate().filter_map(|stream| begin(stream).ok()).collect();
            let why = self.supervise(&shared, control, &mut standing, watch);
            let ended = clock::now();
            self.drain(&shared);
            let cpu: CpuTimes = threads.into_iter().filter_map(|thread| thread.join().ok()).sum();
            (ended, cpu, why)
        });
        self.report(&shared, &mut standing, watch, ended);
        let cpu = cpu + (clock::thread_cpu_times() - cpu_before);
        (self.outcome(&standing, ended, cpu), why)
    }

    fn initial_progress(&self, start: Nanos) -> RunProgress {
        let none = vec![StreamCounts::default(); self.streams.len()];
        RunProgress {
            start,
            counts_from: (self.parameters.omit_secs == 0).then_some(start),
            base: none.clone(),
            last: none,
            last_at: start,
            extremes: vec![TcpExtremes::default(); self.streams.len()],
            next_report: self.limits.interval.map_or(Nanos::MAX, |interval| start + interval),
            last_received: (0, start),
            rate_from: (0, start),
            broken_since: None,
        }
    }

    /// Runs one stream in its thread.
    fn stream(&self, shared: &SharedProgress, place: usize, open: &OpenStream, start: Nanos) -> CpuTimes {
        let over = if open.stream.role == StreamRole::Sender { &shared.sending_over } else { &shared.receiving_over };
        let counting = SlotContext { slot: &shared.slots[place], over, start };
        match data::run(open, self.parameters, self.block_budget(open.stream.role), &counting) {
            Ok(StreamEnd::Stopped) => {}
            Ok(StreamEnd::FileSent) => shared.is_file_sent.store(true, Ordering::Relaxed),
            Err(error) if is_file_error(&error) => {
                shared.file_failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            Err(_) => {
                shared.n_broken.fetch_add(1, Ordering::Relaxed);
            }
        }
        shared.n_done.fetch_add(1, Ordering::Relaxed);
        clock::thread_cpu_times()
    }

    /// Returns the number of blocks that one sender sends. All senders have the same share, so they need no coordination.
    ///
    /// Datagrams of a server have no such limit, because the client counts those that arrive. There is also no limit if a part is
    /// omitted.
    fn block_budget(&self, part: StreamRole) -> Option<u64> {
        let n = u64::from(self.parameters.parallel.max(1));
        let arrives = self.side == Side::Initiator || self.parameters.protocol == TransportProtocol::Tcp;
        let is_mine = part == StreamRole::Sender && arrives && self.parameters.omit_secs == 0;
        self.parameters.budget().filter(|_| is_mine).map(|blocks| blocks.div_ceil(n))
    }

    /// Reports and checks until something ends the test.
    fn supervise(
        &self,
        shared: &SharedProgress,
        control: &mut ControlConnection,
        standing: &mut RunProgress,
        watch: &mut dyn TestObserver,
    ) -> Result<(), Error> {
        let has_budget = self.parameters.budget().is_some();
        let omit_end = standing.start + Nanos::from_secs(self.parameters.omit_secs.into());
        let time = Nanos::from_secs(self.parameters.time_secs.into());
        let ends_at = match (self.side, has_budget || self.parameters.time_secs == 0) {
            (Side::Initiator, false) => omit_end + time,
            _ => Nanos::MAX,
        };
        loop {
            let now = clock::now();
            if standing.counts_from.is_none() && now >= omit_end {
                self.report(shared, standing, watch, now);
                self.begin_measured(standing, now);
            }
            if now >= ends_at {
                return Ok(());
            }
            if now >= standing.next_report {
                self.report(shared, standing, watch, now);
                let interval = self.limits.interval.expect("there is a next report");
                standing.next_report += interval;
            }
            if standing.counts_from.is_some() && has_budget && self.is_complete(shared, standing) {
                return Ok(());
            }
            self.check(shared, standing, now)?;
            if self.side == Side::Initiator && shared.is_file_sent.load(Ordering::Relaxed) {
                return Ok(());
            }
            let look = if has_budget { POLL_INTERVAL_VOLUME } else { POLL_INTERVAL };
            let omit_wait = if standing.counts_from.is_none() { omit_end } else { Nanos::MAX };
            let until = (now + look).min(ends_at).min(standing.next_report).min(omit_wait);
            let byte = control.byte_until(until)?;
            if control.stop().state() == Stop::Abort {
                return Err(Error::Interrupted);
            }
            if let Some(byte) = byte {
                return self.handle_message(control, byte);
            }
        }
    }

    /// Handles a message of the other side during the test. Such a message can only end the test.
    fn handle_message(&self, control: &mut ControlConnection, byte: u8) -> Result<(), Error> {
        const AWAITED: &str = "the end of the test";
        match (control.interpret(byte, AWAITED)?, self.side) {
            (TestState::TestEnd, Side::Responder) => Ok(()),
            (state, _) => Err(Error::Unexpected { got: format!("{state:?}"), awaited: AWAITED }),
        }
    }

    /// Starts the counted part; everything before is the base.
    fn begin_measured(&self, standing: &mut RunProgress, now: Nanos) {
        standing.base.clone_from(&standing.last);
        standing.counts_from = Some(now);
        standing.extremes.fill(TcpExtremes::default());
        standing.next_report = self.limits.interval.map_or(Nanos::MAX, |interval| now + interval);
    }

    /// Whether a client has sent or received the requested volume.
    fn is_complete(&self, shared: &SharedProgress, standing: &RunProgress) -> bool {
        let Some(blocks) = self.parameters.budget().filter(|_| self.side == Side::Initiator) else { return false };
        let enough = blocks.saturating_mul(self.parameters.block.0);
        let volume = |part: StreamRole| -> u64 {
            let places = self.streams.iter().zip(&shared.slots).zip(&standing.base);
            let of_part = places.filter(|((open, _), _)| open.stream.role == part);
            of_part.map(|((_, slot), base)| slot.read(Counter::Bytes as usize) - base.bytes).sum()
        };
        volume(StreamRole::Sender) >= enough || volume(StreamRole::Receiver) >= enough
    }

    /// Checks for conditions that abort a test: silence, a rate above the limit, or a duration above the limit.
    fn check(&self, shared: &SharedProgress, standing: &mut RunProgress, now: Nanos) -> Result<(), Error> {
        if now - standing.start > self.limits.time_max {
            return Err(Error::Denied { code: code::DURATION_EXPIRED });
        }
        let receives = self.streams.iter().any(|open| open.stream.role == StreamRole::Receiver);
        let bytes = shared.received(self.streams);
        if bytes > standing.last_received.0 || !receives {
            standing.last_received = (bytes, now);
        } else if now - standing.last_received.1 > self.limits.idle {
            return Err(Error::Idle);
        }
        // This side paces its own sending, so only the other side can exceed the limit.
        if let Some((most, over)) = self.limits.rate {
            let span = now - standing.rate_from.1;
            if span >= over {
                let rate = approximate(bytes - standing.rate_from.0) * 8.0 / span.as_secs_f64();
                if rate > approximate(most) {
                    return Err(Error::Denied { code: code::TOTAL_RATE });
                }
                standing.rate_from = (bytes, now);
            }
        }
        if let Some(error) = shared.file_failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(Error::File { what: "unable to read or write the -F file", cause: error.source });
        }
        if shared.n_broken.load(Ordering::Relaxed) > 0 {
            // The control connection reports the reason if it can. TCP notices a dead host only much later.
            let since = *standing.broken_since.get_or_insert(now);
            if now - since > BROKEN {
                return Err(Error::Refused { code: 207, errno: 0 });
            }
        }
        Ok(())
    }

    /// Reports an interval, unless it is too short and empty to mean anything.
    fn report(&self, shared: &SharedProgress, standing: &mut RunProgress, watch: &mut dyn TestObserver, now: Nanos) {
        let readings: Vec<_> =
            self.streams.iter().enumerate().map(|(place, open)| shared.reading(place, open)).collect();
        let rows: Vec<_> = readings.iter().zip(&standing.last).map(|(reading, last)| reading.since(last)).collect();
        let zero = standing.counts_from.unwrap_or(standing.start);
        let interval = Interval {
            start: standing.last_at - zero,
            end: now - zero,
            is_omitted: standing.counts_from.is_none(),
            rows,
        };
        for (extremes, reading) in standing.extremes.iter_mut().zip(&readings) {
            reading.tcp.iter().for_each(|tcp| extremes.take(tcp));
        }
        let span = now - standing.last_at;
        let is_empty = interval.rows.iter().all(|row| row.bytes == 0);
        let is_short = self.limits.interval.is_some_and(|interval| span * 10 < interval);
        standing.last = readings;
        standing.last_at = now;
        if !(is_empty && is_short) {
            watch.on_interval(&interval);
        }
    }

    /// Stops the senders, lets data in flight arrive, and stops the receivers.
    fn drain(&self, shared: &SharedProgress) {
        shared.sending_over.store(true, Ordering::Relaxed);
        // A client at the end of its file or its volume says so at once, with much of it still in flight.
        let has_file = self.streams.iter().any(|open| open.file.is_some());
        let is_udp = self.parameters.protocol == TransportProtocol::Udp;
        let receives = self.streams.iter().any(|open| open.stream.role == StreamRole::Receiver);
        let volume = self.parameters.budget().filter(|_| receives && !is_udp && !has_file);
        let volume = volume.map_or(0, |blocks| blocks.saturating_mul(self.parameters.block.0));
        if (is_udp || has_file || volume > 0) && self.side == Side::Responder {
            let received = || shared.received(self.streams);
            let (begin, mut bytes, mut quiet_since) = (clock::now(), received(), clock::now());
            let is_due = |bytes: u64, quiet_since: Nanos| bytes < volume || clock::now() - quiet_since < DRAIN_QUIET;
            while clock::now() - begin < DRAIN_MAX && is_due(bytes, quiet_since) {
                clock::sleep_until(clock::now() + Nanos::from_millis(1));
                if received() != bytes {
                    (bytes, quiet_since) = (received(), clock::now());
                }
            }
        }
        shared.receiving_over.store(true, Ordering::Relaxed);
    }

    fn outcome(&self, standing: &RunProgress, ended: Nanos, cpu: CpuTimes) -> Iperf3Outcome {
        let zero = standing.counts_from.unwrap_or(ended);
        let whole = (ended - standing.start).as_secs_f64().max(1e-9);
        let percent = |span: Nanos| span.as_secs_f64() / whole * 100.0;
        let is_tcp = self.parameters.protocol == TransportProtocol::Tcp;
        let of = |(place, open): (usize, &OpenStream)| {
            let base = if standing.counts_from.is_some() { standing.base[place] } else { standing.last[place] };
            StreamOutcome {
                stream: open.stream,
                total: standing.last[place].since(&base),
                omitted: Omitted { lost: base.lost, packets: base.packets },
                extremes: (is_tcp && open.stream.role == StreamRole::Sender).then_some(standing.extremes[place]),
            }
        };
        let congestion = |open: &OpenStream| socket::congestion(&open.socket).ok();
        Iperf3Outcome {
            streams: self.streams.iter().enumerate().map(of).collect(),
            span: ended - zero,
            cpu: CpuUse { total: percent(cpu.user + cpu.system), user: percent(cpu.user), system: percent(cpu.system) },
            congestion: self.streams.first().filter(|_| is_tcp).and_then(congestion),
            peer: None,
        }
    }
}
