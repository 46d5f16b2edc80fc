//! A view as lines of text, for a terminal, a pipe or a file.

use fathom_model::{
    Finding, Severity,
    units::{BitsPerSec, Bytes, Nanos, PerSec, grouped, percent, rounded, significant},
};

use crate::{
    sockets::{BusySocket, BusySockets, WaitingListener},
    tables::{Column, Quantity, Sense, TABLES, TableShape},
    view::View,
};

/// How a line is drawn where there are colors. The words alone say all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// The titles of a table.
    Title,
    /// A fault, or a finding that holds something back.
    Fault,
    /// Less important.
    Faint,
}

/// A line with its tone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The text without line end.
    pub text: String,
    /// Its tone.
    pub tone: Tone,
}

impl Line {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    /// The line before the first interval is over.
    #[must_use]
    pub fn waiting(interval: Nanos) -> Self {
        Self::new(format!("fathom watch   the first {interval} are being measured"), Tone::Faint)
    }
}

/// Returns the lines of a view.
#[must_use]
pub fn lines(view: &View) -> Vec<Line> {
    let head = format!("fathom watch   {}   {}   every {}", view.host, view.at, view.interval_ns);
    let mut lines = vec![Line::new(head, Tone::Plain)];
    for shape in &TABLES {
        lines.push(Line::new("", Tone::Plain));
        lines.extend(table(view, shape));
    }
    lines.extend(view.sockets.iter().flat_map(sockets));
    lines.extend(view.listeners.iter().flat_map(|listeners| waiting(listeners)));
    lines.push(Line::new("", Tone::Plain));
    lines.extend(view.findings.iter().flat_map(finding));
    if view.findings.is_empty() {
        lines.push(Line::new("no counter shows anything that holds this host back", Tone::Faint));
    }
    lines.extend(view.losses.iter().map(|loss| Line::new(format!("note  {loss}"), Tone::Faint)));
    lines
}

fn finding(finding: &Finding) -> Vec<Line> {
    let (label, tone) = match finding.severity {
        Severity::Remark => ("remark", Tone::Faint),
        Severity::Disturbs => ("disturbs", Tone::Fault),
        Severity::HoldsBack | Severity::Invalidates => ("holds back", Tone::Fault),
    };
    let mut lines = vec![Line::new(format!("{label}  {}", finding.title), tone)];
    if let Some(next) = finding.next.as_ref().filter(|_| finding.severity != Severity::Remark) {
        lines.push(Line::new(format!("            next: {}", next.command), Tone::Plain));
    }
    lines
}

/// Returns a table as lines with columns of equal width: the titles, then a row per instance.
fn table(view: &View, shape: &TableShape) -> Vec<Line> {
    let Some(rows) = view.tables.get(shape.id).filter(|rows| !rows.is_empty()) else { return Vec::new() };
    // Columns without any value are left out.
    let is_known = |column: &&Column| rows.values().any(|row| row.contains_key(column.id));
    let columns: Vec<&Column> = shape.columns.iter().filter(is_known).collect();
    let titles = std::iter::once(shape.title.to_owned()).chain(columns.iter().map(|column| column.title.to_owned()));
    let mut cells = vec![titles.collect::<Vec<_>>()];
    let mut tones = vec![Tone::Title];
    for (name, row) in rows {
        let shown =
            |column: &&Column| row.get(column.id).map_or_else(|| "–".to_owned(), |value| show(column.quantity, *value));
        cells.push(std::iter::once(name.clone()).chain(columns.iter().map(shown)).collect());
        let is_fault =
            |column: &&Column| column.sense == Sense::Fault && row.get(column.id).is_some_and(|value| *value > 0.0);
        tones.push(if columns.iter().any(is_fault) { Tone::Fault } else { Tone::Plain });
    }
    aligned(&cells).into_iter().zip(tones).map(|(text, tone)| Line::new(text, tone)).collect()
}

/// The most connections and the most listeners that are shown: enough to see who it is.
const SOCKETS_SHOWN: usize = 5;

/// Returns the connections that moved the most bytes under a row of titles, or a line that none did.
fn sockets(of: &BusySockets) -> Vec<Line> {
    if of.busiest.is_empty() {
        let none = match of.n_connections {
            0 => "there is no TCP connection".to_owned(),
            1 => "the one TCP connection moved no bytes".to_owned(),
            n => format!("none of the {n} TCP connections moved bytes"),
        };
        return vec![Line::new("", Tone::Plain), Line::new(none, Tone::Faint)];
    }
    let shown = of.busiest.iter().take(SOCKETS_SHOWN);
    let rate = |bps: f64| show(Quantity::BitRate(""), bps);
    let unknown = || "–".to_owned();
    let cells = |socket: &BusySocket| {
        vec![
            format!("{} to {}", socket.local, socket.peer),
            rate(socket.rate_rx_bps),
            rate(socket.rate_tx_bps),
            socket.rtt_ns.map_or_else(unknown, |rtt| rtt.to_string()),
            grouped(socket.n_resent.into()),
            socket.program.as_ref().map_or_else(unknown, |program| format!("{} ({})", program.name, program.pid)),
        ]
    };
    let tone = |socket: &BusySocket| if socket.n_resent > 0 { Tone::Fault } else { Tone::Plain };
    rows(&["tcp connection", "rx", "tx", "rtt", "resent", "program"], shown.map(|socket| (cells(socket), tone(socket))))
}

/// Returns the listeners with connections that wait under a row of titles; nothing if none wait.
fn waiting(listeners: &[WaitingListener]) -> Vec<Line> {
    if listeners.is_empty() {
        return Vec::new();
    }
    let cells = |listener: &WaitingListener| {
        let full = if listener.is_full { "full" } else { "" };
        let (waiting, length) = (grouped(listener.n_waiting.into()), grouped(listener.n_length.into()));
        let tone = if listener.is_full { Tone::Fault } else { Tone::Plain };
        (vec![listener.address.to_string(), waiting, length, full.to_owned()], tone)
    };
    rows(&["tcp listener", "waiting", "length", ""], listeners.iter().take(SOCKETS_SHOWN).map(cells))
}

/// Returns an empty line, the titles and these rows.
fn rows(titles: &[&str], of: impl Iterator<Item = (Vec<String>, Tone)>) -> Vec<Line> {
    let titles = titles.iter().map(|title| (*title).to_owned()).collect();
    let (cells, tones): (Vec<_>, Vec<_>) = std::iter::once((titles, Tone::Title)).chain(of).unzip();
    let lines = aligned(&cells).into_iter().zip(tones).map(|(text, tone)| Line::new(text, tone));
    std::iter::once(Line::new("", Tone::Plain)).chain(lines).collect()
}

/// Pads the cells to the widest of their column: names to the right, numbers to the left.
pub(crate) fn aligned(cells: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..cells.first().map_or(0, Vec::len)).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let blank = " ".repeat(width - cell.chars().count());
            if column == 0 { format!("{cell}{blank}") } else { format!("{blank}{cell}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

/// Formats a value of a column.
fn show(quantity: Quantity, value: f64) -> String {
    match quantity {
        _ if value == 0.0 => "0".to_owned(),
        Quantity::BitRate(_) => BitsPerSec::new(value).map_or_else(String::new, |rate| rate.to_string()),
        Quantity::Rate(_) if value < 1.0 => format!("{}/s", significant(value)),
        Quantity::Rate(_) => PerSec::new(value).map_or_else(String::new, |rate| rate.to_string()),
        Quantity::Share(..) => percent(value),
        Quantity::Count(_) => grouped(rounded(value)),
        Quantity::Bytes(_) => Bytes(rounded(value)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn connections_at_rest_differ_from_no_connections() {
        let of = |n_connections| BusySockets { interval_ns: Nanos::from_secs(1), n_connections, busiest: Vec::new() };
        assert_eq!(text(&sockets(&of(0))), ["", "there is no TCP connection"]);
        assert_eq!(text(&sockets(&of(7))), ["", "none of the 7 TCP connections moved bytes"]);
    }

    #[test]
    fn a_full_listener_is_a_fault_and_says_so_in_words() {
        let listener = |n_waiting, n_length| WaitingListener {
            address: "[::1]:80".parse().unwrap(),
            n_waiting,
            n_length,
            is_full: n_waiting > n_length,
        };
        let lines = waiting(&[listener(2, 1), listener(1, 128)]);
        let titles = "tcp listener  waiting  length";
        assert_eq!(text(&lines), ["", titles, "[::1]:80            2       1  full", "[::1]:80            1     128"]);
        assert_eq!((lines[2].tone, lines[3].tone), (Tone::Fault, Tone::Plain));
    }
}
