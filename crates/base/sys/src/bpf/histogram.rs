//! Histograms kept by a program: each octave has 32 buckets, so the middle of a bucket is within 1.6 % of every value in it.

use fathom_model::Histogram;

use super::{
    Assembler, Operation,
    Register::{R0, R1, R2, R3},
};

/// The number of buckets, a power of two.
pub const BUCKETS: usize = 1 << BUCKET_BITS;
/// The largest value that has a bucket: 36 bits, 68.7 s as nanoseconds.
pub const MAX: u64 = (1 << (u64::BITS - LAST_FROM.leading_zeros())) - 1;
/// The smallest value of the last bucket: 67.6 s as nanoseconds.
pub const LAST_FROM: u64 = ((2 << PRECISION) - 1) << ((1 << (BUCKET_BITS - PRECISION)) - 2);
const BUCKET_BITS: u8 = 10;
const PRECISION: u8 = 5;
const MASK: i32 = (1 << BUCKET_BITS) - 1;

/// Counts the value in `R1`, at most [`MAX`], in the row of buckets at `R0`. Clobbers `R1` to `R3`.
pub fn count(a: &mut Assembler) {
    // R2 becomes the shift after which the value has at most six significant bits.
    a.mov(R3, R1).compute(Operation::ShiftRight, R3, i32::from(PRECISION) + 1).mov(R2, 0);
    for step in [16, 8, 4, 2, 1] {
        let below = a.label();
        a.jump_if(R3.below(1 << step), below).add(R2, step).compute(Operation::ShiftRight, R3, step).bind(below);
    }
    a.add(R2, R3).compute(Operation::ShiftRight, R1, R2);
    a.compute(Operation::ShiftLeft, R2, i32::from(PRECISION)).add(R1, R2);
    a.compute(Operation::And, R1, MASK).compute(Operation::ShiftLeft, R1, 3);
    a.add(R0, R1).load(R2, R0.double(0)).add(R2, 1).store(R0.double(0), R2);
}

/// The middle of the values of the last bucket, as which all of them count.
#[must_use]
pub const fn last_middle() -> u64 {
    middle(BUCKETS as u64 - 1)
}

/// The middle of the values of a bucket.
const fn middle(bucket: u64) -> u64 {
    let octave = (bucket >> PRECISION).saturating_sub(1);
    let low = (bucket - (octave << PRECISION)) << octave;
    low + ((1 << octave) >> 1)
}

/// Returns the distribution in these buckets.
#[must_use]
pub fn histogram(buckets: &[u64; BUCKETS]) -> Histogram {
    let mut histogram = Histogram::new();
    for (bucket, count) in (0..).zip(buckets) {
        histogram.record_n(middle(bucket), *count);
    }
    histogram
}

#[cfg(test)]
mod tests {
    use fathom_model::units::approximate;

    use super::{
        super::{PerCpuArray, Program, ProgramType, Register::R10, XdpAction, privilege::or_skip},
        *,
    };

    /// Returns the bucket in which a program counts a value.
    fn bucket_of(value: u64) -> Option<u64> {
        let row = or_skip(PerCpuArray::<BUCKETS>::create("fathom_buckets", 1))?;
        let mut a = Assembler::new();
        let missing = a.label();
        a.store(R10.word(-4), 0).look_up(&row, -4, missing).load_constant(R1, value);
        count(&mut a);
        a.bind(missing).give(XdpAction::Drop);
        let program = Program::load(ProgramType::Xdp, "fathom_count", &a.assemble()).unwrap();
        program.test_run(&[0; 60], 1).unwrap();
        (0..).zip(row.sum(0).unwrap()).find(|(_, count)| *count == 1).map(|(bucket, _)| bucket)
    }

    #[test]
    fn every_value_is_counted_where_its_middle_is_near() {
        let values = (0..36).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + (1 << bit) / 3]);
        for value in
            values.chain([63, 64, 65, 1_000, 10_007, 123_456_789, u64::from(u32::MAX), LAST_FROM - 1, LAST_FROM, MAX])
        {
            let Some(bucket) = bucket_of(value) else { return };
            let off = approximate(middle(bucket).abs_diff(value)) / approximate(value.max(1));
            assert!(off <= 0.016, "{value} is counted as {}", middle(bucket));
            assert_eq!(bucket == BUCKETS as u64 - 1, value >= LAST_FROM, "{value}");
        }
    }
}
