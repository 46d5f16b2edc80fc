//! The date of a response as RFC 9110 section 5.6.7 writes it.

use fathom_model::units::Nanos;

/// The length in bytes.
pub(super) const LENGTH: usize = 29;

const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Formats a time since the epoch: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn http_date(wall: Nanos) -> String {
    let secs = wall.0 / 1_000_000_000;
    let (days, time) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil_date(days);
    let weekday = WEEKDAYS[usize::try_from(days % 7).unwrap_or(0)];
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Year, month and day of the month of a day since the epoch.
fn civil_date(days: u64) -> (u64, &'static str, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in MONTHS.into_iter().zip(lengths) {
        if day < length {
            return (year, month, day + 1);
        }
        day -= length;
    }
    unreachable!("a year of {year} has more days than its months")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ];
        for (secs, date) in cases {
            assert_eq!(http_date(Nanos::from_secs(secs)), date);
            assert_eq!(date.len(), LENGTH);
        }
    }
}
