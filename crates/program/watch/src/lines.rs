//! A view as lines of text, for a terminal, a pipe or a file.

use std::{collections::BTreeMap, net::SocketAddr};

use fathom_model::{
    Finding, Severity,
    units::{BitsPerSec, Bytes, Nanos, PerSec, grouped, percent, rounded, significant},
};

use crate::{
    queue_shares::QueueShare,
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

    /// The line that says where a scraper finds the counters.
    #[must_use]
    pub fn scraped_at(address: SocketAddr) -> Self {
        Self::new(format!("counters at http://{address}/metrics"), Tone::Faint)
    }
}

/// The room for a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// A file or a pipe, whose readers have their own.
    Any,
    /// A terminal of this many columns.
    Columns(usize),
}

impl Width {
    /// Returns true if so many characters fit.
    const fn fits(self, n_chars: usize) -> bool {
        match self {
            Self::Any => true,
            Self::Columns(columns) => n_chars <= columns,
        }
    }
}

/// Returns the lines of a view: the findings first, then the tables.
#[must_use]
pub fn lines(view: &View, width: Width) -> Vec<Line> {
    let mut lines = vec![Line::new(head(view, width), Tone::Plain), Line::new("", Tone::Plain)];
    lines.extend(view.findings.iter().flat_map(|found| finding(found, width)));
    if view.findings.is_empty() {
        lines.extend(wrapped("", &nothing_found(view), Tone::Faint, width));
    }
    for shape in &TABLES {
        let table = table(view, shape, width);
        lines.extend((!table.is_empty()).then(|| Line::new("", Tone::Plain)));
        lines.extend(table);
    }
    lines.extend(queues(&view.queues, width));
    lines.extend(view.sockets.iter().flat_map(|found| sockets(found, width)));
    lines.extend(view.listeners.iter().flat_map(|listeners| waiting(listeners, width)));
    if !view.losses.is_empty() {
        lines.push(Line::new("", Tone::Plain));
        lines.extend(view.losses.iter().flat_map(|loss| wrapped("note  ", loss, Tone::Faint, width)));
    }
    lines
}

/// Returns the sentence of a view without findings: what was looked at, and what could not be.
fn nothing_found(view: &View) -> String {
    let is_unknown = |shape: &&TableShape| view.tables.get(shape.id).is_none_or(BTreeMap::is_empty);
    let unknown: Vec<&str> = TABLES.iter().filter(is_unknown).map(|shape| shape.id).collect();
    match unknown.len() {
        0 => "no counter shows anything that holds this host back".to_owned(),
        n if n == TABLES.len() => {
            format!("nothing could be looked at: there are no counters of {}", unknown.join(", "))
        }
        _ => format!(
            "no counter shows anything that holds this host back, but these could not be looked at: {}",
            unknown.join(", ")
        ),
    }
}

/// Returns the longest head that fits.
fn head(view: &View, width: Width) -> String {
    let View { host, at, interval_ns, .. } = view;
    let clock = at.get(11..19).unwrap_or(at);
    let heads = [
        format!("fathom watch   {host}   {at}   every {interval_ns}"),
        format!("fathom watch   {host}   {clock}   every {interval_ns}"),
        format!("{host}   {clock}   every {interval_ns}"),
    ];
    let fitting = heads.iter().find(|head| width.fits(head.chars().count()));
    fitting.cloned().unwrap_or_else(|| shortened(&format!("{clock} {host}"), width))
}

fn finding(finding: &Finding, width: Width) -> Vec<Line> {
    let (label, tone) = match finding.severity {
        Severity::Remark => ("remark  ", Tone::Faint),
        Severity::Disturbs => ("disturbs  ", Tone::Fault),
        Severity::HoldsBack | Severity::Invalidates => ("holds back  ", Tone::Fault),
    };
    // A number and its sign stay on one line of a screen.
    let title = match width {
        Width::Any => finding.title.clone(),
        Width::Columns(_) => finding.title.replace(" %", "\u{a0}%"),
    };
    let mut lines = wrapped(label, &title, tone, width);
    if let Some(next) = finding.next.as_ref().filter(|_| finding.severity != Severity::Remark) {
        lines.extend(wrapped("            next: ", &next.command, Tone::Plain, width));
    }
    lines
}

/// The narrowest room for a text behind its label.
const TEXT_MIN: usize = 24;
/// The indent of further lines if the label leaves less.
const INDENT: usize = 2;

/// Returns a text behind a label, wrapped at spaces, with further lines below the text.
pub(crate) fn wrapped(label: &str, text: &str, tone: Tone, width: Width) -> Vec<Line> {
    let Width::Columns(columns) = width else { return vec![Line::new(format!("{label}{text}"), tone)] };
    let label_width = label.chars().count();
    let (label, indent) = if columns < label_width + TEXT_MIN {
        (label.trim_start(), INDENT.min(columns / 2))
    } else {
        (label, label_width)
    };
    let mut lines: Vec<String> = Vec::new();
    let mut line = label.to_owned();
    let mut is_begun = false;
    for word in text.split(' ') {
        let gap = usize::from(is_begun);
        if is_begun && line.chars().count() + gap + word.chars().count() > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        } else if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    lines.push(line);
    lines.into_iter().map(|line| Line::new(shortened(&line, width), tone)).collect()
}

/// Returns a text that fits, with a sign where it was cut.
pub(crate) fn shortened(text: &str, width: Width) -> String {
    match width {
        Width::Columns(columns) if text.chars().count() > columns => {
            text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
        }
        _ => text.to_owned(),
    }
}

/// Returns a table as lines with columns of equal width: the titles, then a row per instance.
fn table(view: &View, shape: &TableShape, width: Width) -> Vec<Line> {
    let Some(rows) = view.tables.get(shape.id).filter(|rows| !rows.is_empty()) else { return Vec::new() };
    // Columns without any value are left out.
    let is_known = |column: &&Column| rows.values().any(|row| row.contains_key(column.id));
    let columns: Vec<&Column> = shape.columns.iter().filter(is_known).collect();
    let titles = std::iter::once(shape.title.to_owned()).chain(columns.iter().map(|column| column.title.to_owned()));
    let is_fault = |column: &Column, row: &BTreeMap<&'static str, f64>| {
        column.sense == Sense::Fault && row.get(column.id).is_some_and(|value| *value > 0.0)
    };
    let mut cells = vec![titles.collect::<Vec<_>>()];
    let mut tones = vec![Tone::Title];
    for (name, row) in rows {
        let shown =
            |column: &&Column| row.get(column.id).map_or_else(|| "–".to_owned(), |value| show(column.quantity, *value));
        cells.push(std::iter::once(name.clone()).chain(columns.iter().map(shown)).collect());
        tones.push(if columns.iter().any(|column| is_fault(column, row)) { Tone::Fault } else { Tone::Plain });
    }
    let faults: Vec<&str> = columns
        .iter()
        .filter(|column| rows.values().any(|row| is_fault(column, row)))
        .map(|column| column.title)
        .collect();
    let fitted = fitted(cells, &faults, width);
    aligned(&fitted).into_iter().zip(tones).map(|(text, tone)| Line::new(shortened(&text, width), tone)).collect()
}

/// Removes columns until a table fits: those without a value but zero first, then from the right, and those with faults last. The
/// first two stay.
fn fitted(mut cells: Vec<Vec<String>>, faults: &[&str], width: Width) -> Vec<Vec<String>> {
    let widest = |cells: &[Vec<String>], column: usize| {
        cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut is_cut = false;
    loop {
        let n_columns = cells.first().map_or(0, Vec::len);
        let whole: usize = (0..n_columns).map(|column| widest(&cells, column) + GAP).sum();
        // The sign behind the titles needs room too.
        let sign = usize::from(is_cut) * (GAP + 1);
        if n_columns <= 2 || width.fits((whole + sign).saturating_sub(GAP)) {
            break;
        }
        let is_idle = |column: &usize| cells[1..].iter().all(|row| matches!(row[*column].as_str(), "0" | "–" | ""));
        let is_work = |column: &usize| !faults.contains(&cells[0][*column].as_str());
        let from_right = || (2..n_columns).rev();
        let removed = from_right().find(is_idle).or_else(|| from_right().find(is_work)).unwrap_or(n_columns - 1);
        for row in &mut cells {
            row.remove(removed);
        }
        is_cut = true;
    }
    if is_cut {
        for (index, row) in cells.iter_mut().enumerate() {
            row.push(if index == 0 { "…" } else { "" }.to_owned());
        }
    }
    cells
}

/// Returns a text of at most this many characters, with a sign where its middle was cut.
fn squeezed(text: &str, room: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= room {
        return text.to_owned();
    }
    let n_end = room.saturating_sub(1) / 2;
    let n_begin = room.saturating_sub(1 + n_end);
    text.chars().take(n_begin).chain(['…']).chain(text.chars().skip(n_chars - n_end)).collect()
}

/// The distance of columns.
const GAP: usize = 2;

/// The most connections and the most listeners that are shown: enough to see who it is.
const SOCKETS_SHOWN: usize = 5;

/// Returns the connections that moved the most bytes under a row of titles, or a line that none did.
fn sockets(of: &BusySockets, width: Width) -> Vec<Line> {
    if of.busiest.is_empty() {
        let none = match of.n_connections {
            0 => "there is no TCP connection".to_owned(),
            1 => "the one TCP connection moved no bytes".to_owned(),
            n => format!("none of the {n} TCP connections moved bytes"),
        };
        return vec![Line::new("", Tone::Plain), Line::new(shortened(&none, width), Tone::Faint)];
    }
    let shown = of.busiest.iter().take(SOCKETS_SHOWN);
    let whole = |socket: &BusySocket| format!("{} to {}", socket.local, socket.peer);
    // Names take at most half of the room, so that the numbers stay.
    let room = match width {
        Width::Any => usize::MAX,
        Width::Columns(columns) => columns / 2,
    };
    let are_whole = shown.clone().all(|socket| whole(socket).chars().count() <= room);
    let rate = |bps: f64| show(Quantity::BitRate(""), bps);
    let unknown = || "–".to_owned();
    let cells = |socket: &BusySocket| {
        vec![
            if are_whole { whole(socket) } else { squeezed(&socket.peer.to_string(), room) },
            rate(socket.rate_rx_bps),
            rate(socket.rate_tx_bps),
            socket.rtt_ns.map_or_else(unknown, |rtt| rtt.to_string()),
            grouped(socket.n_resent.into()),
            socket.program.as_ref().map_or_else(unknown, |program| format!("{} ({})", program.name, program.pid)),
        ]
    };
    let tone = |socket: &BusySocket| if socket.n_resent > 0 { Tone::Fault } else { Tone::Plain };
    let title = if are_whole { "tcp connection" } else { "tcp peer" };
    let titles = [title, "rx", "tx", "rtt", "resent", "program"];
    rows(&titles, shown.map(|socket| (cells(socket), tone(socket))), width)
}

/// Returns the listeners with connections that wait under a row of titles; nothing if none wait.
fn waiting(listeners: &[WaitingListener], width: Width) -> Vec<Line> {
    if listeners.is_empty() {
        return Vec::new();
    }
    let cells = |listener: &WaitingListener| {
        let full = if listener.is_full { "full" } else { "" };
        let (waiting, length) = (grouped(listener.n_waiting.into()), grouped(listener.n_length.into()));
        let tone = if listener.is_full { Tone::Fault } else { Tone::Plain };
        (vec![listener.address.to_string(), waiting, length, full.to_owned()], tone)
    };
    rows(&["tcp listener", "waiting", "length", ""], listeners.iter().take(SOCKETS_SHOWN).map(cells), width)
}

/// The most queues of a direction of an interface that are shown: the busiest.
const QUEUES_SHOWN: usize = 4;

/// Returns the busiest queues of each interface under a row of titles; nothing if no driver counts by queue.
fn queues(of: &[QueueShare], width: Width) -> Vec<Line> {
    let mut shown = Vec::new();
    for way in of.chunk_by(|a, b| a.interface == b.interface && a.direction == b.direction) {
        let mut busiest: Vec<&QueueShare> = way.iter().collect();
        busiest.sort_by(|a, b| b.packets_pps.total_cmp(&a.packets_pps));
        let beyond = busiest.len().saturating_sub(QUEUES_SHOWN);
        let name = |queue: &QueueShare| format!("{} {} {}", queue.interface, queue.direction, queue.queue);
        let row = |queue: &&QueueShare| {
            let rate = show(Quantity::Rate(&[]), queue.packets_pps);
            let share = queue.share.map_or_else(|| "–".to_owned(), percent);
            (vec![name(queue), rate, share], Tone::Plain)
        };
        shown.extend(busiest.iter().take(QUEUES_SHOWN).map(row));
        if beyond > 0 {
            let text = format!("{} {}: {beyond} more", way[0].interface, way[0].direction);
            shown.push((vec![text, String::new(), String::new()], Tone::Faint));
        }
    }
    if shown.is_empty() { Vec::new() } else { rows(&["queue", "packets", "share"], shown.into_iter(), width) }
}

/// Returns an empty line, the titles and these rows.
fn rows(titles: &[&str], of: impl Iterator<Item = (Vec<String>, Tone)>, width: Width) -> Vec<Line> {
    let titles = titles.iter().map(|title| (*title).to_owned()).collect();
    let (cells, tones): (Vec<_>, Vec<_>) = std::iter::once((titles, Tone::Title)).chain(of).unzip();
    let fitted = aligned(&fitted(cells, &[], width));
    let lines = fitted.into_iter().zip(tones).map(|(text, tone)| Line::new(shortened(&text, width), tone));
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
        assert_eq!(text(&sockets(&of(0), Width::Any)), ["", "there is no TCP connection"]);
        assert_eq!(text(&sockets(&of(7), Width::Any)), ["", "none of the 7 TCP connections moved bytes"]);
    }

    #[test]
    fn a_full_listener_is_a_fault_and_says_so_in_words() {
        let listener = |n_waiting, n_length| WaitingListener {
            address: "[::1]:80".parse().unwrap(),
            n_waiting,
            n_length,
            is_full: n_waiting > n_length,
        };
        let lines = waiting(&[listener(2, 1), listener(1, 128)], Width::Any);
        let titles = "tcp listener  waiting  length";
        assert_eq!(text(&lines), ["", titles, "[::1]:80            2       1  full", "[::1]:80            1     128"]);
        assert_eq!((lines[2].tone, lines[3].tone), (Tone::Fault, Tone::Plain));
    }
}
