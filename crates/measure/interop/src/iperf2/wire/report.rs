//! The report of a server at the end of a UDP flow.

use fathom_model::units::{Nanos, approximate, rounded};

use super::{DATAGRAM_LEN, halves, put, put_time, time, word};

/// The length of a report, with the 16 bytes before it that begin every datagram.
pub const REPORT_LEN: usize = DATAGRAM_LEN + BASE_LEN + TRANSIT_LEN + WIDE_LEN;
/// The length of a report without transit times and 64-bit counts, as versions before 2.0.5 sent it.
pub const REPORT_SHORT_LEN: usize = DATAGRAM_LEN + BASE_LEN;

const BASE_LEN: usize = 40;
const TRANSIT_LEN: usize = 60;
const WIDE_LEN: usize = 12;

const VERSION_1: u32 = 0x8000_0000;
const HAS_TRANSIT: u32 = 0x4000_0000;
const WIDE_COUNTS: u32 = 0x0800_0000;

/// Offsets in the datagram.
mod at {
    pub(super) const FLAGS: usize = 16;
    pub(super) const BYTES: usize = 20;
    pub(super) const SPAN: usize = 28;
    pub(super) const LOST: usize = 36;
    pub(super) const REORDERED: usize = 40;
    pub(super) const DATAGRAMS: usize = 44;
    pub(super) const JITTER: usize = 48;
    pub(super) const TRANSIT: usize = 56;
    pub(super) const N_TRANSIT: usize = 104;
    pub(super) const PER_SEC: usize = 108;
    pub(super) const PER_SEC_SPAN: usize = 112;
    pub(super) const UPPER: usize = 116;
}

/// One-way times of the datagrams of a flow, from the clocks of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TransitTimes {
    pub n: u64,
    pub min: Nanos,
    pub max: Nanos,
    pub sum: Nanos,
    /// The sum of squared differences from the mean, in square microseconds.
    pub squares_us: f64,
}

impl TransitTimes {
    /// The mean; `None` without a datagram.
    #[must_use]
    pub fn mean(&self) -> Option<Nanos> {
        self.sum.0.checked_div(self.n).map(Nanos)
    }

    /// The standard deviation; `None` for fewer than two datagrams.
    #[must_use]
    pub fn deviation(&self) -> Option<Nanos> {
        let degrees = self.n.checked_sub(1).filter(|degrees| *degrees > 0)?;
        Some(Nanos(rounded((self.squares_us / approximate(degrees)).sqrt() * 1e3)))
    }
}

/// The counts of a server for one flow.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ServerReport {
    pub bytes: u64,
    /// From the first to the last datagram, on the server's clock.
    pub span: Nanos,
    pub lost: u64,
    pub reordered: u64,
    /// The highest number.
    pub datagrams: u64,
    pub jitter: Nanos,
    /// Present with `-e` or `--trip-times`.
    pub transit: Option<TransitTimes>,
    /// Datagrams per second; present with the transit times.
    pub per_sec: Option<u32>,
}

impl ServerReport {
    /// Reads a report with the 16 bytes before it; `None` if the datagram is something else.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let flags = word(datagram, at::FLAGS)?;
        if flags & VERSION_1 == 0 || datagram.len() < REPORT_SHORT_LEN {
            return None;
        }
        let number = |at| word(datagram, at).map(u64::from);
        let upper = |n: usize| if flags & WIDE_COUNTS == 0 { 0 } else { number(at::UPPER + 4 * n).unwrap_or(0) << 32 };
        let has_transit = flags & HAS_TRANSIT != 0 && datagram.len() >= at::UPPER;
        let span = |n: usize| time(datagram, at::TRANSIT + 8 * n);
        let transit = || {
            Some(TransitTimes {
                min: span(0)?,
                max: span(1)?,
                sum: span(2)?,
                squares_us: approximate(number(at::TRANSIT + 32)?) + approximate(number(at::TRANSIT + 36)?) / 1e6,
                n: number(at::N_TRANSIT)?,
            })
        };
        let per_sec = || Some(word(datagram, at::PER_SEC)? / word(datagram, at::PER_SEC_SPAN)?.max(1));
        Some(Self {
            bytes: (number(at::BYTES)? << 32) | number(at::BYTES + 4)?,
            span: time(datagram, at::SPAN)?,
            lost: number(at::LOST)? | upper(0),
            reordered: number(at::REORDERED)? | upper(1),
            datagrams: number(at::DATAGRAMS)? | upper(2),
            jitter: time(datagram, at::JITTER)?,
            transit: has_transit.then(transit).flatten(),
            per_sec: has_transit.then(per_sec).flatten(),
        })
    }

    /// Writes the report, as much of it as has room in `most` bytes; `None` if not even the counts have.
    #[must_use]
    pub fn write(&self, most: usize) -> Option<Vec<u8>> {
        let is_whole = most >= REPORT_LEN;
        if most < REPORT_SHORT_LEN {
            return None;
        }
        let mut bytes = vec![0; if is_whole { REPORT_LEN } else { REPORT_SHORT_LEN }];
        let mut flags = VERSION_1;
        put(&mut bytes, at::BYTES, halves(self.bytes).1);
        put(&mut bytes, at::BYTES + 4, halves(self.bytes).0);
        put_time(&mut bytes, at::SPAN, self.span);
        put_time(&mut bytes, at::JITTER, self.jitter);
        let counts = [(at::LOST, self.lost), (at::REORDERED, self.reordered), (at::DATAGRAMS, self.datagrams)];
        for (n, (place, count)) in counts.into_iter().enumerate() {
            let (low, high) = halves(count);
            put(&mut bytes, place, low);
            if is_whole {
                put(&mut bytes, at::UPPER + 4 * n, high);
            }
        }
        if is_whole {
            flags |= WIDE_COUNTS;
            if let Some(transit) = &self.transit {
                flags |= HAS_TRANSIT;
                self.write_transit(&mut bytes, transit);
            }
        }
        put(&mut bytes, at::FLAGS, flags);
        Some(bytes)
    }

    fn write_transit(&self, bytes: &mut [u8], transit: &TransitTimes) {
        let spans = [transit.min, transit.max, transit.sum, transit.mean().unwrap_or_default()];
        spans.into_iter().enumerate().for_each(|(n, span)| put_time(bytes, at::TRANSIT + 8 * n, span));
        let whole = rounded(transit.squares_us.floor());
        put(bytes, at::TRANSIT + 32, u32::try_from(whole).unwrap_or(u32::MAX));
        put(
            bytes,
            at::TRANSIT + 36,
            u32::try_from(rounded(transit.squares_us.fract() * 1e6)).unwrap_or(0).min(999_999),
        );
        put(bytes, at::N_TRANSIT, u32::try_from(transit.n).unwrap_or(u32::MAX));
        put(bytes, at::PER_SEC, self.per_sec.unwrap_or(0));
        put(bytes, at::PER_SEC_SPAN, 1);
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    /// The report of `iperf -s -u -e` 2.1.8 on the datagrams 1, 2, 4, 3, 6 and the end mark 7.
    const REAL: &str = "00000000000000000000000000000000c800000000000000000022740000000000043f1a0000000100000001000000070000000000000109\
        00000000000000290000000000000b060000000000000bfe00000000000001ff0061bf6b0005161500000000fffffdcc000000060000001900000001\
        000000000000000000000000";

    fn real() -> Vec<u8> {
        HEXLOWER.decode(REAL.replace(' ', "").as_bytes()).unwrap()
    }

    #[test]
    fn a_report_of_the_real_iperf_is_read() {
        let report = ServerReport::read(&real()).unwrap();
        assert_eq!((report.bytes, report.lost, report.reordered, report.datagrams), (8820, 1, 1, 7));
        assert_eq!((report.span, report.jitter), (Nanos::from_micros(278_298), Nanos::from_micros(265)));
        let transit = report.transit.unwrap();
        assert_eq!((transit.n, transit.min, transit.max), (6, Nanos::from_micros(41), Nanos::from_micros(2822)));
        // As the server printed it: 0.512/0.041/2.822/1.132 ms.
        let shown = |time: Option<Nanos>| format!("{:.3}", time.unwrap().as_secs_f64() * 1e3);
        assert_eq!((shown(transit.mean()), shown(transit.deviation())), ("0.512".to_owned(), "1.132".to_owned()));
        assert_eq!(report.per_sec, Some(25));
    }

    #[test]
    fn a_report_is_written_as_the_real_iperf_writes_it_but_for_a_field_that_nobody_reads() {
        let report = ServerReport::read(&real()).unwrap();
        let written = report.write(1470).unwrap();
        let mut expected = real();
        // The difference of the last two transit times.
        expected[96..104].fill(0);
        assert_eq!(HEXLOWER.encode(&written), HEXLOWER.encode(&expected));
        assert_eq!(ServerReport::read(&written), Some(report));
    }

    #[test]
    fn a_report_is_no_longer_than_there_is_room() {
        let report = ServerReport { datagrams: 5, lost: 1 << 33, ..ServerReport::default() };
        assert_eq!(report.write(REPORT_SHORT_LEN - 1), None);
        let short = report.write(REPORT_LEN - 1).unwrap();
        assert_eq!(short.len(), REPORT_SHORT_LEN);
        assert_eq!(ServerReport::read(&short).map(|report| (report.datagrams, report.lost)), Some((5, 0)));
        let whole = report.write(REPORT_LEN).unwrap();
        assert_eq!((whole.len(), ServerReport::read(&whole)), (REPORT_LEN, Some(report)));
        assert_eq!(ServerReport::read(&[0; REPORT_LEN]), None, "without its flag it is something else");
    }
}
