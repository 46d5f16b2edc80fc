//! Where a line of a page may not end: between a number and its unit.

/// The units that stand behind a number, and the words that stand for one.
const UNITS: [&str; 27] = [
    "%", "ns", "µs", "ms", "s", "min", "h", "B", "KiB", "MiB", "GiB", "TiB", "bit/s", "kbit/s", "Mbit/s", "Gbit/s",
    "Tbit/s", "/s", "k/s", "M/s", "req/s", "pps", "kpps", "Mpps", "k", "M", "×",
];

/// Puts a no-break space between each number and its unit, and behind `±`.
pub(super) fn with_units_kept(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        out.push_str(word);
        let Some(next) = words.peek() else { break };
        let is_number = word.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit());
        // `k req/s` is a unit of two words.
        let is_prefix = matches!(word, "k" | "M") && *next == "req/s";
        let unit = next.trim_end_matches([',', ';', ':', '.', ')', '?']);
        let stays = word == "±" || ((is_number || is_prefix) && UNITS.contains(&unit));
        out.push(if stays { '\u{a0}' } else { ' ' });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_unit_stay_on_one_line() {
        for (text, kept) in [
            ("lost 3.7 % > 0.10 %", "lost 3.7\u{a0}% > 0.10\u{a0}%"),
            ("69 dropped of 5,661 (1.2 %)", "69 dropped of 5,661 (1.2\u{a0}%)"),
            ("to 50.0 Mbit/s: packets waited", "to 50.0\u{a0}Mbit/s: packets waited"),
            ("59 % of http 8.06 k req/s", "59\u{a0}% of http 8.06\u{a0}k\u{a0}req/s"),
            ("saves 1.05 ± 0.86 µs", "saves 1.05 ±\u{a0}0.86\u{a0}µs"),
            ("no unit here, 5 errors", "no unit here, 5 errors"),
            ("", ""),
        ] {
            assert_eq!(with_units_kept(text), kept);
        }
    }
}
