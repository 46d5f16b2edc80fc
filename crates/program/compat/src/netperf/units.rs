//! netperf's units of throughput (`-f`), and numbers as C prints them.

use fathom_model::units::approximate;

/// The unit of a throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThroughputUnit {
    Bits,
    Kilobits,
    Megabits,
    Gigabits,
    Bytes,
    Kibibytes,
    Mebibytes,
    Gibibytes,
    Transactions,
}

impl ThroughputUnit {
    /// The unit of a letter; without one that of the kind of test.
    pub(super) fn of(letter: Option<char>, is_transactions: bool) -> Self {
        match letter {
            Some('b') => Self::Bits,
            Some('k') => Self::Kilobits,
            Some('m') => Self::Megabits,
            Some('g') => Self::Gigabits,
            Some('B') => Self::Bytes,
            Some('K') => Self::Kibibytes,
            Some('M') => Self::Mebibytes,
            Some('G') => Self::Gibibytes,
            _ if is_transactions => Self::Transactions,
            _ => Self::Megabits,
        }
    }

    /// The word of the unit, without the time.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Bits => "10^0bits",
            Self::Kilobits => "10^3bits",
            Self::Megabits => "10^6bits",
            Self::Gigabits => "10^9bits",
            Self::Bytes => "Bytes",
            Self::Kibibytes => "KBytes",
            Self::Mebibytes => "MBytes",
            Self::Gibibytes => "GBytes",
            Self::Transactions => "Trans",
        }
    }

    /// Converts bytes per second, or transactions per second, to this unit.
    ///
    /// netperf 2.7 prints bytes under `-f b`; here the number is what the unit says.
    pub(super) fn per_second(self, count: u64, seconds: f64) -> f64 {
        if seconds <= 0.0 {
            return 0.0;
        }
        let factor = match self {
            Self::Bits => 8.0,
            Self::Kilobits => 8.0 / 1e3,
            Self::Megabits => 8.0 / 1e6,
            Self::Gigabits => 8.0 / 1e9,
            Self::Bytes | Self::Transactions => 1.0,
            Self::Kibibytes => 1.0 / 1024.0,
            Self::Mebibytes => 1.0 / (1024.0 * 1024.0),
            Self::Gibibytes => 1.0 / (1024.0 * 1024.0 * 1024.0),
        };
        approximate(count) * factor / seconds
    }

    /// The unit of bytes: netperf shows one-way throughputs of transactions in megabits.
    pub(super) fn of_bytes(self) -> Self {
        if self == Self::Transactions { Self::Megabits } else { self }
    }
}
