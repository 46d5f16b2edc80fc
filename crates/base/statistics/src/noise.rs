//! Seeded pseudo-random series for tests.

use fathom_model::units::approximate;

/// Xorshift64*: good enough for noise that is the same on every machine.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        approximate(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) / approximate(1 << 53)
    }

    /// Mean 0 and standard deviation 1: twelve uniform numbers have a variance of 1.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// A stationary series around 1000 with this coefficient of variation.
    pub(crate) fn around(&mut self, cv: f64, n: usize) -> Vec<f64> {
        (0..n).map(|_| (1000.0 * (1.0 + cv * self.normal())).max(0.0)).collect()
    }
}
