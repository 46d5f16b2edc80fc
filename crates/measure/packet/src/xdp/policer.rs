//! A policer: a device with a known throughput, which drops frames above a rate.

use fathom_model::units::{PerSec, approximate, rounded};
use fathom_sys::{
    Result,
    bpf::{
        Array, Assembler, Helper, Operation,
        Register::{R0, R1, R2, R6, R8, R9, R10},
    },
    clock,
};

use super::{DropProgram, FrameMatch, KEY, RedirectTarget, drop_program::ExitLabels};

/// The generic cell rate algorithm (ITU-T I.371 annex A): a rate, and the most frames that may come at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicerLimit {
    /// Frames that pass per second in the long run; above zero.
    pub rate: PerSec,
    /// Frames that pass at once after a pause; at least one.
    pub burst: u32,
}

/// The program counts time in units of 2⁻¹⁰ ns, so that rates that do not divide a second are exact to one millionth.
const FRACTION_BITS: u8 = 10;
/// Retries of a processor if another one changed the state meanwhile. A frame that loses all of them is dropped.
const ATTEMPTS: usize = 8;

/// The constants of the program, in its units of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GcraParams {
    /// The time between two frames at the rate.
    increment: u64,
    /// How far a frame may come ahead of its time.
    tolerance: u64,
}

impl PolicerLimit {
    fn gcra_params(self) -> GcraParams {
        assert!(self.rate.get() > 0.0 && self.burst > 0, "{self:?} would let nothing pass");
        let increment = rounded(1e9 / self.rate.get() * approximate(1 << FRACTION_BITS)).max(1);
        GcraParams { increment, tolerance: increment.saturating_mul(u64::from(self.burst - 1)) }
    }
}

/// Returns a program that passes frames up to a rate: the true result of a throughput search.
///
/// It is exact for any number of processors. Its clock lasts for 208 days.
///
/// # Errors
/// Without `CAP_BPF` and `CAP_NET_ADMIN`.
///
/// # Panics
/// If the rate or the burst is zero.
pub fn policer(matching: FrameMatch, limit: PolicerLimit) -> Result<DropProgram> {
    gate(matching, None, limit)
}

/// Returns a policer for all IPv4 and IPv6 packets that redirects the passed frames to another device. Nothing else limits them.
///
/// # Errors
/// Without `CAP_BPF` and `CAP_NET_ADMIN`.
///
/// # Panics
/// If the rate or the burst is zero.
pub fn policed_redirect(onward: RedirectTarget, limit: PolicerLimit) -> Result<DropProgram> {
    gate(FrameMatch::AnyIp, Some(onward), limit)
}

fn gate(matching: FrameMatch, onward: Option<RedirectTarget>, limit: PolicerLimit) -> Result<DropProgram> {
    // One word: the theoretical arrival time of the next frame.
    let state = Array::<1>::create("fathom_state", 1)?;
    let (cells, epoch) = (limit.gcra_params(), clock::now());
    DropProgram::load("fathom_policer", matching, onward, |a, exits| {
        a.store(R10.word(KEY), 0).look_up(&state, KEY, exits.leave).mov(R9, R0);
        a.call(Helper::MonotonicNanos).mov(R8, R0).load_constant(R1, epoch.0).sub(R8, R1);
        a.compute(Operation::ShiftLeft, R8, i32::from(FRACTION_BITS)).load_constant(R6, cells.increment);
        for _ in 0..ATTEMPTS {
            attempt(a, cells, exits);
        }
    })
}

/// Decides on the frame by the state at `R9`, and continues if another processor changed it meanwhile. `R8` is the time now.
fn attempt(a: &mut Assembler, cells: GcraParams, exits: ExitLabels) {
    let on_time = a.label();
    // Too soon: now + tolerance < theoretical arrival time.
    a.load(R0, R9.double(0)).load_constant(R1, cells.tolerance).add(R1, R8).jump_if(R1.below(R0), exits.drop);
    a.mov(R1, R0).jump_if(R1.at_least(R8), on_time).mov(R1, R8);
    a.bind(on_time).add(R1, R6).mov(R2, R0);
    a.compare_exchange(R9.double(0), R1).jump_if(R0.equals(R2), exits.pass);
}

#[cfg(test)]
mod tests {
    use fathom_model::{MacAddress, units::Nanos};
    use fathom_sys::bpf::XdpAction;

    use super::{super::test_frames::*, *};
    use fathom_wire::{Mark, MarkOffsets};

    fn limit(rate: f64, burst: u32) -> PolicerLimit {
        PolicerLimit { rate: PerSec::new(rate).unwrap(), burst }
    }

    #[test]
    fn a_rate_that_is_no_divisor_of_a_second_is_kept_to_a_millionth() {
        let cells = limit(300_000.0, 512).gcra_params();
        assert_eq!(cells.increment, 3_413_333);
        assert_eq!(cells.tolerance, 511 * 3_413_333);
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        // One frame per 100 s: during a test only the burst passes.
        let matching = FrameMatch::Marked { tag: Mark::tag_of(TRIAL), at: MarkOffsets::START };
        let Some(gate) = or_skip(policer(matching, limit(0.01, 20))) else { return };
        gate.program().test_run(&frame(64, 0), 50).unwrap();
        let fate = gate.counts().unwrap();
        assert_eq!((fate.passed.0, fate.dropped.0), (20, 30));
        let other = changed(&frame(64, 0), MarkOffsets::START);
        assert_eq!(gate.program().test_run(&other, 10).unwrap().value, XdpAction::Pass as u32);
        assert_eq!(gate.counts().unwrap(), fate, "frames of others are not its business");
    }

    #[test]
    fn what_passes_on_to_a_device_has_its_addresses_and_what_is_too_much_is_dropped() {
        let (destination, source) = (MacAddress([2, 1, 2, 3, 4, 5]), MacAddress([2, 9, 8, 7, 6, 5]));
        let onward = RedirectTarget { device: 1, destination, source };
        let Some(gate) = or_skip(policed_redirect(onward, limit(0.01, 1))) else { return };
        let run = gate.program().test_run(&frame(64, 0), 1).unwrap();
        assert_eq!(run.value, XdpAction::Redirect as u32);
        assert_eq!((&run.frame[..6], &run.frame[6..12]), (&destination.0[..], &source.0[..]));
        assert_eq!(gate.program().test_run(&frame(64, 0), 1).unwrap().value, XdpAction::Drop as u32);
        assert_eq!((gate.counts().unwrap().passed.0, gate.counts().unwrap().dropped.0), (1, 1));
    }

    #[test]
    fn what_passes_in_a_time_is_at_most_the_rate_times_the_time_and_the_burst() {
        let Some(gate) = or_skip(policer(FrameMatch::AnyIp, limit(50_000.0, 100))) else { return };
        let before = clock::now();
        let frame = frame(64, 0);
        while clock::now() - before < Nanos::from_millis(200) {
            gate.program().test_run(&frame, 100).unwrap();
        }
        let most = approximate((clock::now() - before).0) * 50_000.0 / 1e9 + 101.0;
        let passed = approximate(gate.counts().unwrap().passed.0);
        // Frames are missing if this thread pauses for longer than the burst. The test cannot control how often that happens.
        assert!(passed <= most && passed >= 100.0, "{passed} of at most {most}");
    }
}
