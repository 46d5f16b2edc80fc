//! Where a load curve bends; it does not know what is offered to what.

/// A point of a load curve: what was achieved per second, and how long one took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loaded {
    /// The throughput, in any unit.
    pub throughput: f64,
    /// The response time, in any unit.
    pub response: f64,
}

/// The knee of a load curve: the place of the point with the most power, throughput / response time.
///
/// Kleinrock, "Power and Deterministic Rules of Thumb for Probabilistic Problems in Computer Communications", ICC 1979: beyond it
/// response time grows faster than throughput; of an M/M/1 queue it is where the queue is busy half of the time. Nothing with fewer
/// than three points, or when the most power is at the first or last: then the bend is not among them.
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
