//! The end of a warm-up.

/// Says when a series of rates has stopped climbing.
#[derive(Debug, Clone, Default)]
pub struct Steadiness(Vec<f64>);

impl Steadiness {
    /// Takes the rate of one more interval; whether the series is steady by now.
    pub fn push(&mut self, rate: f64) -> bool {
        self.0.push(rate);
        let n = self.0.len();
        if n < 6 {
            return false;
        }
        let mean = |part: &[f64]| part.iter().sum::<f64>() / 3.0;
        let (before, after) = (mean(&self.0[n - 6..n - 3]), mean(&self.0[n - 3..]));
        after > 0.0 && (after - before).abs() <= 0.05 * after
    }
}
