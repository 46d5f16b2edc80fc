//! A device that harms traffic on purpose: loss, delay, jitter, rate, duplicates, reordering, corruption, resets, an MTU, outages.
//!
//! A thread per direction takes frames from one wire and puts them on the other (`AF_PACKET`). No counter of the kernel sees what it drops,
//! as with any box on a real path; it counts its own deeds, which no rule of the analysis reads. [`FrameFate`] decides about each frame; it
//! knows no clock and no socket.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use fathom_model::{
    names::host,
    units::{BitsPerSec, Bytes, Nanos, approximate, rounded},
};
use fathom_sys::{
    clock,
    packet::packet_socket::{MAX_BATCH, Queueing, ReceiveBuffer, Receiver, Sender},
};

use super::{
    ProgramGuard,
    hop_counters::{DIRECTIONS, HopCounters},
    reset,
    told_counters::{self, CounterServer, ToldCounters},
};

/// The damage that a device does to each of its directions; zero means none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Frames lost, in millionths.
    pub loss_ppm: u32,
    /// The mean number of frames lost in a row; 0 and 1 mean independent losses.
    pub burst: u32,
    /// The delay of every frame.
    pub delay: Nanos,
    /// The largest additional delay; it is uniformly distributed and keeps the order of frames.
    pub jitter: Nanos,
    /// The rate that frames leave with, in bits per second; the others wait.
    pub rate_bps: u64,
    /// The frames that wait for the rate at most.
    pub queue: u32,
    /// Frames sent twice, in millionths.
    pub duplicate_ppm: u32,
    /// Frames that later ones overtake, in millionths.
    pub reorder_ppm: u32,
    /// Frames with a flipped bit behind the IP header, in millionths.
    pub corrupt_ppm: u32,
    /// The largest packet that passes, in bytes.
    pub mtu_bytes: u32,
    /// How long nothing passes, once in every [`OUTAGE_PERIOD`].
    pub outage: Nanos,
    /// TCP segments with payload that are replaced by a reset for both ends, in millionths.
    pub reset_ppm: u32,
    /// The directions that are harmed; the other one passes everything.
    pub directions: ImpairedDirections,
    /// The seed of all random decisions.
    pub seed: u32,
}

/// The directions that an impairment harms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ImpairedDirections {
    /// Both.
    #[default]
    Both,
    /// From the first host of the lab to the last.
    Forward,
    /// From the last host of the lab to the first.
    Back,
}

impl ImpairedDirections {
    /// The words of the two single directions, in the order of the variants.
    fn word(self) -> Option<&'static str> {
        match self {
            Self::Both => None,
            Self::Forward => Some(DIRECTIONS[0]),
            Self::Back => Some(DIRECTIONS[1]),
        }
    }

    fn harms(self, direction: &str) -> bool {
        self.word().is_none_or(|word| word == direction)
    }
}

/// The distance between the beginnings of two outages.
const OUTAGE_PERIOD: Nanos = Nanos::from_secs(3);
/// The queue in front of a rate: as many frames as a small home router holds.
const QUEUE_DEFAULT: u32 = 100;
/// How much later a frame leaves that others overtake.
const REORDER_DELAY: Nanos = Nanos::from_micros(500);
/// The bytes of an Ethernet header and the smallest IP header: addresses stay whole, so that a damaged frame arrives.
const HEADERS: usize = 14 + 20;
/// The longest wait between two looks at the stop flag.
const WAIT_MAX: Nanos = Nanos::from_millis(50);
/// A short delay is kept by a thread that does not sleep this long before a frame is due: a wake-up takes up to that.
const AWAKE: Nanos = Nanos::from_micros(100);
/// A turn without work takes no longer than this, unless another program had the core.
const TURN_MAX: Nanos = Nanos::from_micros(10);
/// The longest delay that is short: of a longer one, a late wake-up is less than a twentieth.
const SHORT_DELAY: Nanos = Nanos::from_millis(2);
/// The receive buffer of a direction: a hundred milliseconds of full frames at 1 Gbit/s.
const BUFFER: Bytes = Bytes(16 << 20);

/// The names of all values, for help.
pub(super) const VALUES: &str = "[:loss=1%,burst=5,delay=10ms,jitter=1ms,rate=50Mbit,queue=100,duplicate=1%,reorder=1%,corrupt=1%,mtu=1400,outage=500ms,rst=0.1%,direction=forward|back,seed=7]";

impl Impairment {
    /// Reads `loss=1%,delay=10ms`.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, String> {
        let mut found = Self { burst: 1, queue: QUEUE_DEFAULT, ..Self::default() };
        for part in text.into_iter().flat_map(|text| text.split(',')) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not written as NAME=VALUE"))?;
            let place = match name.trim() {
                "loss" => &mut found.loss_ppm,
                "duplicate" => &mut found.duplicate_ppm,
                "reorder" => &mut found.reorder_ppm,
                "corrupt" => &mut found.corrupt_ppm,
                "rst" => &mut found.reset_ppm,
                "direction" => {
                    let all = [ImpairedDirections::Forward, ImpairedDirections::Back];
                    let named = all.into_iter().find(|directions| directions.word() == Some(value.trim()));
                    found.directions = named.ok_or_else(|| format!("direction: `{value}` is not forward or back"))?;
                    continue;
                }
                "burst" | "queue" | "mtu" | "seed" => {
                    let number = read::<u32>(name, value)?;
                    match name.trim() {
                        "burst" => found.burst = number.max(1),
                        "queue" => found.queue = number.max(1),
                        "seed" => found.seed = number,
                        _ => found.mtu_bytes = number,
                    }
                    continue;
                }
                "delay" => {
                    found.delay = read(name, value)?;
                    continue;
                }
                "jitter" => {
                    found.jitter = read(name, value)?;
                    continue;
                }
                "outage" => {
                    found.outage = read(name, value)?;
                    continue;
                }
                "rate" => {
                    found.rate_bps = rounded(read::<BitsPerSec>(name, value)?.get());
                    continue;
                }
                other => return Err(format!("it has no value `{other}`")),
            };
            let share = value.trim().strip_suffix('%').and_then(|share| share.parse::<f64>().ok());
            let share = share.filter(|share| (0.0..=100.0).contains(share));
            let share = share.ok_or_else(|| format!("{name}: `{value}` is not a share such as 0.5%"))?;
            *place = u32::try_from(rounded(share * 1e4)).unwrap_or(u32::MAX);
        }
        if found.outage >= OUTAGE_PERIOD {
            return Err(format!("outage: at most {OUTAGE_PERIOD}, which is its period"));
        }
        Ok(found)
    }
}

fn read<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("{name}: `{value}` is not a value of it"))
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |ppm: u32| format!("{}%", f64::from(ppm) / 1e4);
        let all = [
            ("loss", (self.loss_ppm > 0).then(|| share(self.loss_ppm))),
            ("burst", (self.burst > 1).then(|| self.burst.to_string())),
            ("delay", (self.delay > Nanos::ZERO).then(|| format!("{}us", self.delay.0 / 1000))),
            ("jitter", (self.jitter > Nanos::ZERO).then(|| format!("{}us", self.jitter.0 / 1000))),
            ("rate", (self.rate_bps > 0).then(|| format!("{}bit", self.rate_bps))),
            ("queue", (self.rate_bps > 0).then(|| self.queue.to_string())),
            ("duplicate", (self.duplicate_ppm > 0).then(|| share(self.duplicate_ppm))),
            ("reorder", (self.reorder_ppm > 0).then(|| share(self.reorder_ppm))),
            ("corrupt", (self.corrupt_ppm > 0).then(|| share(self.corrupt_ppm))),
            ("mtu", (self.mtu_bytes > 0).then(|| self.mtu_bytes.to_string())),
            ("outage", (self.outage > Nanos::ZERO).then(|| format!("{}us", self.outage.0 / 1000))),
            ("rst", (self.reset_ppm > 0).then(|| share(self.reset_ppm))),
            ("direction", self.directions.word().map(str::to_owned)),
            ("seed", (self.seed > 0).then(|| self.seed.to_string())),
        ];
        let told: Vec<String> =
            all.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
        f.write_str(&told.join(","))
    }
}

/// The decisions about the frames of one direction, in their order.
#[derive(Debug)]
struct FrameFate {
    impairment: Impairment,
    random: fastrand::Rng,
    begin: Option<Nanos>,
    /// Whether the frame before was lost in a burst.
    is_in_burst: bool,
    /// When the frames that are in the line and in the queue before it have been sent, in their order.
    leaves: VecDeque<Nanos>,
    /// When the frame before leaves, so that jitter keeps the order.
    last_due: Nanos,
    counters: Arc<HopCounters>,
}

/// The decision about one frame.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decision {
    /// The times at which it leaves: none if it is lost, two if it is doubled.
    due: Vec<Nanos>,
    /// Resets for both ends leave in its place.
    is_reset: bool,
}

impl FrameFate {
    /// Returns how long before a frame is due the thread no longer sleeps.
    ///
    /// A rate has frames due all the time, so that its thread would never sleep; one that is late for a frame sends the next on time.
    fn awake(&self) -> Nanos {
        let Impairment { delay, jitter, rate_bps, .. } = self.impairment;
        let is_short = delay > Nanos::ZERO && delay + jitter <= SHORT_DELAY;
        if is_short && rate_bps == 0 { AWAKE } else { Nanos::ZERO }
    }

    fn new(impairment: Impairment, seed: u64, counters: Arc<HopCounters>) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let (leaves, last_due) = (VecDeque::new(), Nanos::ZERO);
        Self { impairment, random, begin: None, is_in_burst: false, leaves, last_due, counters }
    }

    /// Decides about a frame, and damages it if it is to be corrupted.
    fn decide(&mut self, frame: &mut [u8], now: Nanos) -> Decision {
        self.counters.add(host::IMPAIR_ARRIVED);
        let Some(sent) = self.passes(frame, now) else { return Decision::default() };
        let is_reset = self.impairment.reset_ppm > 0
            && reset::carries_tcp_data(frame)
            && self.counted(self.impairment.reset_ppm, host::IMPAIR_RESET);
        if frame.len() > HEADERS && self.counted(self.impairment.corrupt_ppm, host::IMPAIR_CORRUPTED) {
            let at = self.random.usize(HEADERS..frame.len());
            frame[at] ^= 1 << self.random.u8(0..8);
        }
        let jitter = Nanos(self.random.u64(0..=self.impairment.jitter.0));
        let due = (sent + self.impairment.delay + jitter).max(self.last_due);
        if due > now {
            self.counters.add(host::IMPAIR_DELAYED);
        }
        if self.counted(self.impairment.reorder_ppm, host::IMPAIR_REORDERED) {
            return Decision { due: vec![due + REORDER_DELAY], is_reset };
        }
        self.last_due = due;
        let is_doubled = self.counted(self.impairment.duplicate_ppm, host::IMPAIR_DUPLICATED);
        Decision { due: if is_doubled { vec![due, due] } else { vec![due] }, is_reset }
    }

    /// Returns when the line has sent a frame; `None` if it is dropped, which is counted by its reason.
    fn passes(&mut self, frame: &[u8], now: Nanos) -> Option<Nanos> {
        let begin = *self.begin.get_or_insert(now);
        let is_too_long = self.impairment.mtu_bytes > 0 && frame.len() > self.impairment.mtu_bytes as usize + 14;
        let is_out =
            self.impairment.outage > Nanos::ZERO && (now - begin).0 % OUTAGE_PERIOD.0 < self.impairment.outage.0;
        let reason = match () {
            () if is_too_long => host::IMPAIR_TOO_BIG,
            () if is_out => host::IMPAIR_OUTAGE_DROPPED,
            () if self.is_lost() => host::IMPAIR_LOST,
            () => match self.line_time(frame.len(), now) {
                None => host::IMPAIR_QUEUE_DROPPED,
                sent => return sent,
            },
        };
        self.counters.add(reason);
        None
    }

    /// Draws whether something happens to a frame, and counts it.
    fn counted(&mut self, ppm: u32, counter: &str) -> bool {
        let happens = self.happens(ppm);
        if happens {
            self.counters.add(counter);
        }
        happens
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.random.u32(0..1_000_000) < ppm
    }

    /// Draws from a chain of two states, so that losses have the given share and mean length (Gilbert's model).
    fn is_lost(&mut self) -> bool {
        let Impairment { loss_ppm, burst, .. } = self.impairment;
        if loss_ppm == 0 {
            return false;
        }
        let (share, length) = (f64::from(loss_ppm) / 1e6, f64::from(burst.max(1)));
        // Independent losses continue with their own probability.
        let goes_on = if burst <= 1 { share } else { 1.0 - 1.0 / length };
        let begins = if burst <= 1 { share } else { (share / ((1.0 - share).max(1e-6) * length)).min(1.0) };
        self.is_in_burst = self.random.f64() < if self.is_in_burst { goes_on } else { begins };
        self.is_in_burst
    }

    /// Returns when the line has sent the frame, or `None` if the queue in front of it is full.
    fn line_time(&mut self, length: usize, now: Nanos) -> Option<Nanos> {
        if self.impairment.rate_bps == 0 {
            return Some(now);
        }
        let bits = approximate(length as u64) * 8.0;
        let takes = Nanos(rounded(bits * 1e9 / approximate(self.impairment.rate_bps)));
        while self.leaves.front().is_some_and(|left| *left <= now) {
            self.leaves.pop_front();
        }
        // The first one is not in the queue: the line sends it.
        if self.leaves.len() > usize::try_from(self.impairment.queue).unwrap_or(usize::MAX) {
            return None;
        }
        let free = self.leaves.back().map_or(now, |last| (*last).max(now)) + takes;
        self.leaves.push_back(free);
        Some(free)
    }
}

/// The sockets of one direction.
#[derive(Debug)]
pub(super) struct DirectionSockets {
    pub(super) from: Receiver,
    pub(super) to: Sender,
    /// Back to where the frames come from, for resets.
    pub(super) back: Sender,
}

impl DirectionSockets {
    /// Opens the sockets of a direction in the calling thread's network namespace.
    pub(super) fn open(from: u32, to: u32) -> fathom_sys::Result<Self> {
        // Frames only move between the wires of a lab.
        let permit = fathom_sys::policy::Policy::anything().permit_frames([]).expect("nothing is refused");
        let sender = |interface| Sender::open(interface, Queueing::Bypass, &permit);
        Ok(Self { from: Receiver::open(from, BUFFER)?, to: sender(to)?, back: sender(from)? })
    }
}

/// The threads of the device; dropping this ends them.
#[derive(Debug)]
pub(super) struct ImpairedPath {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    #[expect(dead_code, reason = "it tells the counters until this is dropped")]
    counters: CounterServer,
}

impl ProgramGuard for ImpairedPath {}

/// The sockets of the device, opened in its network namespace.
#[derive(Debug)]
pub(super) struct ImpairedSockets {
    ways: [DirectionSockets; 2],
    counters: std::os::unix::net::UnixListener,
}

impl ImpairedSockets {
    /// Opens the sockets of both directions between two interfaces, and the one that tells the counters.
    pub(super) fn open(near: u32, far: u32) -> fathom_sys::Result<Self> {
        let ways = [DirectionSockets::open(near, far)?, DirectionSockets::open(far, near)?];
        Ok(Self { ways, counters: told_counters::listen()? })
    }
}

impl ImpairedPath {
    /// Starts a thread per direction. `frame_max` is the longest frame of the wires.
    pub(super) fn start(impairment: Impairment, sockets: ImpairedSockets, frame_max: usize) -> std::io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let counters: [Arc<HopCounters>; 2] = Default::default();
        let server = CounterServer::start(sockets.counters, ToldCounters::Impairment(counters.clone()))?;
        let mut path = Self { is_over: Arc::clone(&is_over), threads: Vec::new(), counters: server };
        // Each direction has a seed of its own, which no other seed shares.
        let seeds = (1..).map(|way| 2 * u64::from(impairment.seed) + way);
        for (((way, direction), counters), seed) in sockets.ways.into_iter().zip(DIRECTIONS).zip(counters).zip(seeds) {
            let harm = if impairment.directions.harms(direction) { impairment } else { Impairment::default() };
            let (is_over, fate) = (Arc::clone(&is_over), FrameFate::new(harm, seed, counters));
            let thread = thread::Builder::new().name(format!("impair-{direction}"));
            path.threads.push(thread.spawn(move || forward(&way, fate, &is_over, frame_max))?);
        }
        Ok(path)
    }
}

impl Drop for ImpairedPath {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Frames that wait for their time, the next one on top; equal times keep the order of arrival.
type Waiting = BinaryHeap<Reverse<WaitingFrame>>;

/// A frame with the time at which it leaves.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingFrame {
    due: Nanos,
    /// The place in the order of arrival.
    number: u64,
    /// Whether it was due later than it came.
    is_delayed: bool,
    bytes: Vec<u8>,
}

/// Forwards frames until the device ends or a wire is gone.
fn forward(way: &DirectionSockets, mut fate: FrameFate, is_over: &AtomicBool, frame_max: usize) {
    clock::sleep_finely();
    fate.counters.runs_here();
    let mut inbox = ReceiveBuffer::of_frames(frame_max);
    let mut waiting = Waiting::new();
    let (mut number, awake) = (0, fate.awake());
    while !is_over.load(Ordering::Relaxed) {
        let next = waiting.peek().map_or(WAIT_MAX, |Reverse(frame)| frame.due - clock::now() - awake);
        if next > Nanos::ZERO && way.from.wait(next.min(WAIT_MAX)).is_err() {
            return;
        }
        let turn = clock::now();
        if way.from.receive(&mut inbox).is_err() {
            return;
        }
        let now = clock::now();
        let has_work = inbox.frames().next().is_some() || waiting.peek().is_some_and(|Reverse(next)| next.due <= now);
        if !has_work {
            // It is awake because a frame is due soon.
            fate.counters.add_awake((now - turn).min(TURN_MAX));
        }
        for (frame, length) in inbox.frames() {
            // A frame longer than the wires allow cannot be put on the other one.
            if length.0 != frame.len() as u64 {
                continue;
            }
            let mut frame = frame.to_vec();
            let Decision { due, is_reset } = fate.decide(&mut frame, now);
            if let Some([onward, back]) = reset::resets(&frame).filter(|_| is_reset) {
                frame = onward;
                // A reset that finds the wire full is lost, like any packet.
                let _ = way.back.send(std::iter::once(back.as_slice()));
            }
            for due in due {
                number += 1;
                waiting.push(Reverse(WaitingFrame { due, number, is_delayed: due > now, bytes: frame.clone() }));
            }
        }
        match send_due(&way.to, &mut waiting) {
            Ok(late) => fate.counters.add_all(host::IMPAIR_LATE_NS, late.0),
            Err(_) => return,
        }
    }
}

/// Sends the frames that are due, and returns by how much the delayed ones among them are late together.
fn send_due(to: &Sender, waiting: &mut Waiting) -> fathom_sys::Result<Nanos> {
    let mut late = Nanos::ZERO;
    loop {
        let now = clock::now();
        let mut due: Vec<Vec<u8>> = Vec::new();
        while due.len() < MAX_BATCH && waiting.peek().is_some_and(|Reverse(frame)| frame.due <= now) {
            let Some(Reverse(frame)) = waiting.pop() else { break };
            late += if frame.is_delayed { now - frame.due } else { Nanos::ZERO };
            due.push(frame.bytes);
        }
        if due.is_empty() {
            return Ok(late);
        }
        let mut left = &due[..];
        while !left.is_empty() {
            use fathom_sys::packet::packet_socket::OfferResult;
            match to.send(left.iter().map(Vec::as_slice))? {
                OfferResult::Accepted(n) => left = &left[n..],
                OfferResult::Dropped => left = &left[1..],
                OfferResult::Busy => {
                    to.wait(WAIT_MAX)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(text: &str, n: u64, gap: Nanos) -> Vec<Vec<Nanos>> {
        let mut fate = FrameFate::new(Impairment::parse(Some(text)).unwrap(), 7, Arc::default());
        (0..n).map(|i| fate.decide(&mut [0; 1000], Nanos(1_000_000_000 + i * gap.0)).due).collect()
    }

    #[test]
    fn every_value_is_read_and_written() {
        let text = "loss=1.5%,burst=5,delay=10ms,jitter=1ms,rate=50Mbit,queue=20,duplicate=1%,reorder=2%,corrupt=0.1%,mtu=1400,outage=500ms,rst=0.5%,direction=back,seed=9";
        let found = Impairment::parse(Some(text)).unwrap();
        assert_eq!((found.loss_ppm, found.burst, found.rate_bps, found.mtu_bytes), (15_000, 5, 50_000_000, 1400));
        assert_eq!(Impairment::parse(Some(&found.to_string())).unwrap(), found, "{found}");
        for wrong in
            ["loss", "loss=2", "loss=101%", "speed=1", "delay=soon", "outage=3s", "direction=up", "seed=x", "rst=1"]
        {
            assert!(Impairment::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn losses_have_their_share_and_their_length() {
        let lost = |text| fates(text, 200_000, Nanos::from_micros(10)).iter().map(Vec::is_empty).collect::<Vec<bool>>();
        for (text, share, length) in [("loss=2%", 0.02, 1.02), ("loss=5%,burst=10", 0.05, 10.0)] {
            let lost = lost(text);
            let count = |n: usize| approximate(u64::try_from(n).unwrap());
            let n = count(lost.iter().filter(|lost| **lost).count());
            let runs = count(lost.windows(2).filter(|pair| !pair[0] && pair[1]).count());
            assert!((n / 200_000.0 / share - 1.0).abs() < 0.15, "{text}: {n}");
            assert!((n / runs / length - 1.0).abs() < 0.15, "{text}: {n} in {runs}");
        }
    }

    #[test]
    fn a_rate_lets_as_much_pass_and_its_queue_holds_as_much() {
        // 8,000 bits every 80 µs are 100 Mbit/s; half of them pass, after a full queue of 20 frames of 160 µs.
        let all = fates("rate=50Mbit,queue=20", 10_000, Nanos::from_micros(80));
        let passed: Vec<(usize, Nanos)> =
            all.iter().enumerate().filter_map(|(i, due)| Some((i, *due.first()?))).collect();
        assert!((4_990..5_040).contains(&passed.len()), "{}", passed.len());
        let (i, due) = *passed.last().unwrap();
        let waited = due - Nanos(1_000_000_000 + i as u64 * 80_000);
        assert!((Nanos::from_micros(3_000)..=Nanos::from_micros(3_400)).contains(&waited), "{waited}");
    }

    #[test]
    fn a_queue_holds_as_many_small_frames_as_large_ones() {
        let text = Some("rate=12Mbit,queue=20");
        let mut fate = FrameFate::new(Impairment::parse(text).unwrap(), 7, Arc::default());
        let now = Nanos(1_000_000_000);
        let mut passes = |length: usize| fate.decide(&mut vec![0; length], now).due.first().copied();
        let large: Vec<Nanos> = (0..15).filter_map(|_| passes(1500)).collect();
        assert_eq!(large.last(), Some(&(now + Nanos::from_millis(15))));
        let small = (0..10).filter_map(|_| passes(60)).count();
        assert_eq!(small, 6, "one frame is sent, and 20 wait");
    }

    #[test]
    fn frames_are_delayed_doubled_overtaken_and_damaged() {
        let gap = Nanos::from_micros(10);
        assert!(
            fates("delay=1ms", 9, gap)
                .iter()
                .enumerate()
                .all(|(i, due)| due == &[Nanos(1_001_000_000 + i as u64 * 10_000)])
        );
        let doubled = fates("duplicate=10%", 10_000, gap).iter().filter(|due| due.len() == 2).count();
        assert!((900..1_100).contains(&doubled), "{doubled}");
        let overtaken = fates("reorder=10%", 10_000, gap).windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((700..1_100).contains(&overtaken), "{overtaken}");
        let jittered = fates("jitter=1ms", 1_000, gap);
        assert!(jittered.is_sorted(), "jitter keeps the order");
        let mut fate = FrameFate::new(Impairment::parse(Some("corrupt=100%")).unwrap(), 7, Arc::default());
        let mut frame = [0; 100];
        fate.decide(&mut frame, Nanos(1));
        assert!(frame[..HEADERS] == [0; HEADERS] && frame.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1);
        assert!(
            fates("mtu=900", 3, gap).iter().all(Vec::is_empty)
                && fates("mtu=986", 3, gap).iter().all(|due| due.len() == 1)
        );
    }

    #[test]
    fn every_frame_is_counted_once_by_what_became_of_it() {
        let text = "loss=5%,duplicate=5%,reorder=5%,corrupt=5%,rate=100Mbit,queue=10,delay=1ms,outage=1ms";
        let counters: Arc<HopCounters> = Arc::default();
        let mut fate = FrameFate::new(Impairment::parse(Some(text)).unwrap(), 7, Arc::clone(&counters));
        let n = 20_000;
        let due: Vec<usize> =
            (0..n).map(|i| fate.decide(&mut [0; 1000], Nanos(1_000_000_000 + i * 70_000)).due.len()).collect();
        let count = |n_due: usize| due.iter().filter(|n| **n == n_due).count() as u64;
        let value = |counter| counters.value(counter);
        assert_eq!(value(host::IMPAIR_ARRIVED), n);
        let dropped = [host::IMPAIR_LOST, host::IMPAIR_QUEUE_DROPPED, host::IMPAIR_OUTAGE_DROPPED].map(value);
        assert!(dropped.iter().all(|n| *n > 0) && dropped.iter().sum::<u64>() == count(0), "{dropped:?}");
        assert_eq!((value(host::IMPAIR_DUPLICATED), value(host::IMPAIR_DELAYED)), (count(2), n - count(0)));
        assert!(value(host::IMPAIR_REORDERED) > 0 && value(host::IMPAIR_CORRUPTED) > 0);
        assert_eq!((value(host::IMPAIR_TOO_BIG), value(host::IMPAIR_RESET)), (0, 0), "none was asked for");
    }

    #[test]
    fn a_seed_decides_about_all_frames_and_another_one_otherwise() {
        let all = |seed| {
            let mut fate = FrameFate::new(Impairment::parse(Some("loss=20%")).unwrap(), seed, Arc::default());
            (0..200).map(|i| fate.decide(&mut [0; 100], Nanos(i)).due.len()).collect::<Vec<_>>()
        };
        assert_eq!(all(3), all(3));
        assert_ne!(all(3), all(4));
    }

    #[test]
    fn an_outage_returns_after_its_period() {
        let all = fates("outage=1s", 60, Nanos::from_millis(100));
        let lost: Vec<usize> = all.iter().enumerate().filter(|(_, due)| due.is_empty()).map(|(i, _)| i).collect();
        assert_eq!(lost, (0..10).chain(30..40).collect::<Vec<_>>());
    }
}
