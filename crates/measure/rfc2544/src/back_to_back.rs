//! The longest burst without loss, and the buffer size computed from it (RFC 2544 section 26.4, RFC 9004).

use fathom_engine::search::binary::{BinarySearch, BinarySearchState};
use fathom_model::units::{Nanos, approximate, rounded};

use super::{LAG_MAX, MethodResult, RetryingTester, Tester, TrialCounts, TrialRequest, TrialTraffic};

/// The parameters of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackToBackOptions {
    /// Frames per second in a burst: the maximum theoretical rate, or the highest possible one.
    pub max_rate: f64,
    /// The measured throughput, at which nothing was lost.
    pub throughput: f64,
    /// The longest burst, as a time.
    pub burst_max: Nanos,
    /// The final distance between the longest burst without loss and the shortest with loss, in frames.
    pub step: u64,
    /// A burst counts as lossy if this many in a row are: `max(r)` of the binary search with loss verification.
    pub max_repeat: u32,
    /// The number of searches.
    pub n_searches: u32,
}

/// The results of the searches.
#[derive(Debug, Clone, PartialEq)]
pub struct BackToBackResult {
    /// The longest burst without loss of each search, in frames.
    pub bursts: Vec<u64>,
    /// Their mean: the benchmark.
    pub mean: f64,
    /// Their standard deviation; `None` for a single search.
    pub deviation: Option<f64>,
    /// The implied buffer time: the duration of the mean burst.
    pub implied: Nanos,
    /// The corrected buffer time: the implied time minus the frames forwarded meanwhile.
    pub corrected: Nanos,
    /// The corrected buffer in frames.
    pub corrected_frames: f64,
    /// The longest allowed burst lost nothing: the result is invalid, and the buffer is larger.
    pub is_at_limit: bool,
}

/// A burst must be sent whole.
const UNSENT_MAX: f64 = 0.0;
/// The longest pause in a burst, in frames due: half of a small buffer. In a longer pause the device empties its buffer, and the
/// burst does not count.
const PAUSE_MAX_FRAMES: f64 = 128.0;

impl BackToBackOptions {
    /// Whether a trial shows if the device loses frames of such a burst, sent in `n_ways` directions at once.
    fn is_conclusive(&self, seen: &TrialCounts, n_ways: u32) -> bool {
        let lag = seen.lag.as_secs_f64();
        let is_whole = seen.is_valid(UNSENT_MAX, LAG_MAX) && lag * self.max_rate <= PAUSE_MAX_FRAMES;
        // After a pause, the remaining frames find the buffer fuller than in a burst without a pause, by at most the frames that
        // the device forwards during the pause. A device that loses more than that would also have lost frames of the whole
        // burst.
        let lost = seen.offered.saturating_sub(seen.received);
        is_whole || approximate(lost) > (lag * self.throughput * f64::from(n_ways)).ceil()
    }
}

/// Repeats the search for the longest burst without loss.
///
/// # Panics
/// If the throughput is above the rate of the burst, or if a number is zero; the caller knows both.
pub fn back_to_back<T: Tester>(
    asked: &BackToBackOptions,
    tester: &mut T,
) -> MethodResult<Option<BackToBackResult>, T::Error> {
    assert!(asked.throughput <= asked.max_rate && asked.n_searches > 0, "{asked:?}");
    let max = rounded(asked.max_rate * asked.burst_max.as_secs_f64()).max(1);
    let search = BinarySearch { min: 1, max, step: asked.step.max(1), max_repeat: asked.max_repeat.max(1) };
    let n_ways = tester.n_directions();
    let mut checked = RetryingTester::new(tester, UNSENT_MAX);
    let mut found = Vec::new();
    for nth in 0..asked.n_searches {
        let searches_left = u64::from(asked.n_searches - nth - 1) * u64::from(max.ilog2());
        let outcome = search.run(|n_frames, n_left| {
            let traffic = TrialTraffic::Burst { n_frames, rate: asked.max_rate };
            let n_left = u64::from(n_left) + searches_left;
            let left = Nanos(traffic.duration().0.saturating_mul(n_left));
            let asked_for = TrialRequest { traffic, purpose: "burst", time_left: left };
            let seen = checked.trial_until(&asked_for, |seen| asked.is_conclusive(seen, n_ways))?;
            Ok(seen.received >= seen.offered)
        });
        match outcome {
            Ok(halved) => found.push(halved),
            Err((_, cut)) => return MethodResult { result: summarize(asked, &found), stopped: Some(cut) },
        }
    }
    MethodResult { result: summarize(asked, &found), stopped: None }
}

/// The benchmark and the buffer times of RFC 9004 section 6.5.
fn summarize(asked: &BackToBackOptions, found: &[BinarySearchState]) -> Option<BackToBackResult> {
    // If even a single frame was lost, the longest burst is zero.
    let bursts: Vec<u64> = found.iter().map(|halved| halved.kept.unwrap_or(0)).collect();
    let n = approximate(u64::try_from(bursts.len()).ok().filter(|n| *n > 0)?);
    let mean = bursts.iter().map(|frames| approximate(*frames)).sum::<f64>() / n;
    let squares: f64 = bursts.iter().map(|frames| (approximate(*frames) - mean).powi(2)).sum();
    let deviation = (bursts.len() > 1).then(|| (squares / (n - 1.0)).sqrt());
    let implied = mean / asked.max_rate;
    let corrected = implied * (1.0 - asked.throughput / asked.max_rate);
    Some(BackToBackResult {
        mean,
        deviation,
        implied: Nanos::from_secs_f64(implied),
        corrected: Nanos::from_secs_f64(corrected),
        corrected_frames: corrected * asked.max_rate,
        is_at_limit: found.iter().any(|halved| halved.broken.is_none()),
        bursts,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{StopReason, virtual_device::VirtualDevice},
        *,
    };

    const ASKED: BackToBackOptions = BackToBackOptions {
        max_rate: 800_000.0,
        throughput: 200_000.0,
        burst_max: Nanos::from_secs(2),
        step: 1,
        max_repeat: 2,
        n_searches: 5,
    };

    #[test]
    fn the_corrected_buffer_of_a_policer_is_its_burst() {
        let mut device = VirtualDevice::policer(200_000.0, 512.0);
        let found = back_to_back(&ASKED, &mut device).result.unwrap();
        // 512 / (1 - 200,000 / 800,000) = 682.67 frames pass in a row.
        assert_eq!(
            (found.bursts.as_slice(), found.deviation, found.is_at_limit),
            ([682; 5].as_slice(), Some(0.0), false)
        );
        assert!((found.corrected_frames - 512.0).abs() <= 1.0, "{found:?}");
        assert!((found.corrected.as_secs_f64() - 512.0 / 800_000.0).abs() < 2e-6, "{found:?}");
    }

    #[test]
    fn the_correction_is_that_of_rfc_9004() {
        // 26,000 frames at 14,880,952/s with a throughput of half of that: 1.747 ms implied, half of it corrected.
        let asked = BackToBackOptions { max_rate: 14_880_952.0, throughput: 7_440_476.0, ..ASKED };
        let found = summarize(&asked, &[BinarySearchState { kept: Some(26_000), broken: Some(26_001) }]).unwrap();
        assert_eq!((found.implied, found.corrected), (Nanos(1_747_200), Nanos(873_600)));
        assert_eq!((found.corrected_frames, found.deviation), (13_000.0, None));
    }

    #[test]
    fn a_burst_as_long_as_was_allowed_is_said_to_be_no_result() {
        let mut device = VirtualDevice::policer(900_000.0, 512.0);
        let found = back_to_back(&ASKED, &mut device).result.unwrap();
        assert!(found.is_at_limit && found.bursts == [1_600_000; 5], "{found:?}");
    }

    #[test]
    fn a_burst_that_was_not_sent_whole_is_sent_again() {
        let mut device = VirtualDevice::policer(200_000.0, 512.0);
        device.stalls_every = Some(4);
        let found = back_to_back(&ASKED, &mut device).result.unwrap();
        assert_eq!(found.bursts, [682; 5]);
    }

    #[test]
    fn a_burst_with_a_pause_in_it_is_sent_again_unless_it_lost_more_than_the_pause_explains() {
        let seen = |lag, unsent: u64, lost: u64| TrialCounts {
            intended: 1_000,
            offered: 1_000 - unsent,
            received: 1_000 - unsent - lost,
            lag,
            ..TrialCounts::default()
        };
        // 128 frames at 800,000 per second are due in 160 µs; at 200,000 per second the device forwards 400 in 2 ms.
        let cases = [
            (Nanos::from_micros(160), 0, 0, true),
            (Nanos::from_micros(160), 0, 1, true),
            (Nanos::from_micros(161), 0, 0, false),
            (Nanos::from_millis(2), 0, 0, false),
            (Nanos::from_millis(2), 0, 400, false),
            (Nanos::from_millis(2), 0, 401, true),
            (Nanos::from_micros(9), 1, 0, false),
            (Nanos::from_micros(9), 1, 3, true),
        ];
        for (lag, unsent, lost, is_told) in cases {
            assert_eq!(
                ASKED.is_conclusive(&seen(lag, unsent, lost), 1),
                is_told,
                "{lag}, {unsent} unsent, {lost} lost"
            );
        }
        let of_both = seen(Nanos::from_millis(2), 0, 600);
        assert!(
            ASKED.is_conclusive(&of_both, 1) && !ASKED.is_conclusive(&of_both, 2),
            "each way forwards 400 in the pause"
        );
        let mut device = VirtualDevice::policer(200_000.0, 512.0);
        device.lags_every = Some(4);
        let found = back_to_back(&ASKED, &mut device).result.unwrap();
        assert_eq!(found.bursts, [682; 5]);
    }

    #[test]
    fn searches_that_were_finished_before_an_interruption_are_kept() {
        let mut device = VirtualDevice::policer(200_000.0, 512.0);
        device.fails_after = Some(80);
        let MethodResult { result: found, stopped: cut } = back_to_back(&ASKED, &mut device);
        assert_eq!(cut, Some(StopReason::Failed("ctrl-C")));
        let bursts = found.unwrap().bursts;
        assert!(!bursts.is_empty() && bursts.len() < 5 && bursts.iter().all(|frames| *frames == 682), "{bursts:?}");
    }
}
