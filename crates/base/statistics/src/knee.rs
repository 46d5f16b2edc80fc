//! Finds the bend of a load curve; independent of the kind of load.

/// A point of a load curve: the achieved throughput and the response time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loaded {
    /// The throughput, in any unit.
    pub throughput: f64,
    /// The response time, in any unit.
    pub response: f64,
}

/// Returns the knee of a load curve: the index of the point with the most power, which is throughput / response time.
///
/// Kleinrock, "Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer Communications", ICC 1979: beyond the knee,
/// response time grows faster than throughput; for an M/M/1 queue, the knee is where the queue is busy half of the time. Returns `None` for
/// fewer than three points, or if the maximum is at the first or the last point: then the bend is outside the curve.
#[must_use]
pub fn knee(curve: &[Loaded]) -> Option<usize> {
    let power = |point: &Loaded| (point.response > 0.0).then(|| point.throughput / point.response);
    let powers: Vec<f64> = curve.iter().map(power).collect::<Option<_>>()?;
    let most = (0..powers.len()).max_by(|a, b| powers[*a].total_cmp(&powers[*b]))?;
    (most > 0 && most + 1 < powers.len()).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(loads: &[f64]) -> Vec<Loaded> {
        loads.iter().map(|load| Loaded { throughput: *load, response: 1.0 / (1000.0 - load) }).collect()
    }

    #[test]
    fn the_knee_of_a_single_queue_is_at_half_its_capacity() {
        let loads = [100.0, 250.0, 400.0, 500.0, 600.0, 800.0, 950.0];
        assert_eq!(knee(&queue(&loads)), Some(3));
    }

    #[test]
    fn a_curve_that_was_not_measured_around_its_bend_has_no_knee() {
        assert_eq!(knee(&queue(&[600.0, 700.0, 800.0])), None);
        assert_eq!(knee(&queue(&[100.0, 200.0, 300.0])), None);
        assert_eq!(knee(&queue(&[100.0, 500.0])), None);
        assert_eq!(knee(&[]), None);
    }
}
