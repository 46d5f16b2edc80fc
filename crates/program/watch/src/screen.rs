//! The live view on a terminal: the newest lines, keys, and the terminal as it was before.

use std::io::{self, IsTerminal as _};

use fathom_model::units::Nanos;
use fathom_sys::clock;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::{
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        terminal,
    },
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text,
    widgets::Paragraph,
};

use crate::lines::{Line, Tone, Width};

/// The last line, in full and for a narrow terminal.
const KEYS: [&str; 3] = ["q ends   space holds the view   ↑ ↓ PgUp PgDn scroll", "q ends  space holds  ↑ ↓", "q ends"];

/// Makes the lines of a page for the width of the terminal.
pub type Page = Box<dyn Fn(Width) -> Vec<Line>>;

/// The terminal while the view is live; dropping it restores the terminal.
pub struct Screen {
    terminal: DefaultTerminal,
    page: Page,
    place: Place,
}

/// What of a page is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    is_held: bool,
    /// The first line.
    scrolled: usize,
    /// The number of lines on the screen when it was drawn last.
    n_lines: usize,
}

/// Why the wait for the next sample ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The time is over.
    Due,
    /// The user asked to end.
    Quit,
}

impl Screen {
    /// Takes the terminal over, and shows this page.
    ///
    /// # Errors
    /// If standard output is no terminal that can be taken over.
    pub fn open(page: Page) -> io::Result<Self> {
        Ok(Self { terminal: ratatui::try_init()?, page, place: Place::default() })
    }

    /// Replaces the page, unless the user holds the view.
    pub fn show(&mut self, page: Page) {
        if !self.place.is_held {
            self.page = page;
        }
    }

    /// Draws and obeys keys until a time on the monotonic clock.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn wait_until(&mut self, deadline: Nanos) -> io::Result<Ending> {
        loop {
            let (page, place) = (&self.page, &mut self.place);
            self.terminal.draw(|frame| draw(frame, page, place))?;
            let left = deadline.since(clock::now());
            if left == Nanos::ZERO {
                return Ok(Ending::Due);
            }
            if event::poll(left.as_duration())?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && self.place.obey(key) == Ending::Quit
            {
                return Ok(Ending::Quit);
            }
        }
    }
}

impl Place {
    fn obey(&mut self, key: KeyEvent) -> Ending {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ending::Quit,
            // Without its usual meaning, ctrl-\ arrives as ctrl-4.
            KeyCode::Char('c' | '\\' | '4') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ending::Quit,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            // Drawing knows where the last line is.
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_add(self.n_lines),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(self.n_lines),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scrolled = usize::MAX,
            _ => {}
        }
        Ending::Due
    }
}

/// Returns the room for a printed line: the columns of the terminal, if standard output is one.
#[must_use]
pub fn printed_width() -> Width {
    let columns = io::stdout().is_terminal().then(terminal::size).and_then(Result::ok);
    columns.filter(|(columns, _)| *columns > 0).map_or(Width::Any, |(columns, _)| Width::Columns(columns.into()))
}

/// Draws what fits of a page, and scrolls no farther than to its last line.
fn draw(frame: &mut Frame<'_>, page: &Page, place: &mut Place) {
    let [body, foot] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    let lines = page(Width::Columns(body.width.into()));
    let n_below = |scrolled: usize| lines.len().saturating_sub(scrolled + usize::from(body.height));
    place.scrolled = place.scrolled.min(n_below(0));
    place.n_lines = body.height.into();
    let shown = lines.iter().skip(place.scrolled).take(body.height.into());
    let shown: Vec<text::Line<'_>> =
        shown.map(|line| text::Line::styled(line.text.as_str(), style(line.tone))).collect();
    frame.render_widget(Paragraph::new(shown), body);
    let foot_text = foot_text(place.is_held, n_below(place.scrolled), foot.width.into());
    frame.render_widget(Paragraph::new(foot_text).style(style(Tone::Faint)), foot);
}

/// Returns the last line: whether the view is held, how much is below, and the keys as far as they fit.
fn foot_text(is_held: bool, n_below: usize, width: usize) -> String {
    let held = if is_held { "HELD   " } else { "" };
    let below = match n_below {
        0 => String::new(),
        1 => "1 line below   ".to_owned(),
        n => format!("{n} lines below   "),
    };
    let mut texts = KEYS.iter().map(|keys| format!("{held}{below}{keys}"));
    let fitting = texts.clone().find(|text| text.chars().count() <= width);
    fitting.or_else(|| texts.next_back()).unwrap_or_default()
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Title => Style::new().add_modifier(Modifier::BOLD),
        Tone::Fault => Style::new().fg(Color::Red),
        Tone::Faint => Style::new().add_modifier(Modifier::DIM),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use fathom_model::{
        Finding, Severity,
        finding::{Evidence, NextStep},
    };
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{
        lines::lines,
        queue_shares::QueueShare,
        sockets::{BusySocket, BusySockets, SocketOwner, WaitingListener},
        view::{SCHEMA, View},
    };

    /// The values of a row by column.
    type Values = BTreeMap<&'static str, f64>;

    fn table(rows: &[(&str, &[(&'static str, f64)])]) -> BTreeMap<String, Values> {
        rows.iter().map(|(name, values)| ((*name).to_owned(), values.iter().copied().collect())).collect()
    }

    fn socket(local: &str, peer: &str, rx: f64, program: Option<(&str, u32)>) -> BusySocket {
        BusySocket {
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            rate_rx_bps: rx,
            rate_tx_bps: 1_200_000.0,
            rtt_ns: Some(Nanos::from_micros(412)),
            n_resent: 0,
            rx_queue_bytes: 0,
            tx_queue_bytes: 0,
            inode: 1,
            uid: 0,
            program: program.map(|(name, pid)| SocketOwner { name: name.to_owned(), pid }),
        }
    }

    fn finding() -> Finding {
        Finding {
            id: "accept-queue".to_owned(),
            short: "accept queue".to_owned(),
            title: "web-1 dropped 812 connections because the accept queue of 0.0.0.0:443 was full".to_owned(),
            severity: Severity::HoldsBack,
            tests: Vec::new(),
            evidence: vec![Evidence {
                host: "web-1".to_owned(),
                counter: "tcp_listen_overflows".to_owned(),
                value: "812".to_owned(),
            }],
            explains: None,
            proof: None,
            next: Some(NextStep {
                command: "sysctl -w net.core.somaxconn=4096".to_owned(),
                on: Some("web-1".to_owned()),
                expected: None,
            }),
        }
    }

    /// A busy server with everything that a view can hold.
    fn busy() -> View {
        let core = |busy, softirq| {
            [("busy", busy), ("user", 0.31), ("system", 0.2), ("softirq", softirq), ("irq", 0.0), ("steal", 0.0)]
        };
        let interface = |rx, drops| {
            [("rx_bps", rx), ("rx_pps", 812_000.0), ("tx_bps", 312e6), ("tx_pps", 64_000.0), ("errors_per_sec", 0.0)]
                .into_iter()
                .chain([("rx_dropped_per_sec", drops), ("tx_dropped_per_sec", 0.0), ("queue_backlog_bytes", 0.0)])
                .collect::<Vec<_>>()
        };
        let (eth0, lo) = (interface(9.1e9, 41.0), interface(0.0, 0.0));
        let tcp = [("out_per_sec", 64_000.0), ("in_per_sec", 812_000.0), ("resent", 0.0), ("timeouts_per_sec", 0.0)]
            .into_iter()
            .chain([("listen_overflows_per_sec", 81.2), ("sockets", 1043.0), ("memory_bytes", 12.4e6)])
            .collect::<Vec<_>>();
        let queue = |queue, share: f64| QueueShare {
            interface: "eth0".to_owned(),
            direction: "rx".into(),
            queue,
            packets_pps: share * 812_000.0,
            share: Some(share),
        };
        View {
            schema: SCHEMA,
            host: "web-1".to_owned(),
            at: "2026-11-25T10:00:03.512+00:00".to_owned(),
            interval_ns: Nanos::from_secs(1),
            tables: [
                ("interfaces", table(&[("eth0", &eth0), ("lo", &lo)])),
                ("cores", table(&[("cpu0", &core(0.98, 0.47)), ("cpu1", &core(0.12, 0.0))])),
                ("tcp", table(&[("", &tcp)])),
                ("udp", table(&[("", &[("out_per_sec", 12.0), ("in_per_sec", 12.0), ("buffer_full_per_sec", 0.0)])])),
            ]
            .into(),
            queues: vec![queue(0, 0.91), queue(1, 0.05), queue(2, 0.02), queue(3, 0.01), queue(4, 0.01)],
            sockets: Some(BusySockets {
                interval_ns: Nanos::from_secs(1),
                n_connections: 1043,
                busiest: vec![
                    socket("198.18.0.2:443", "198.18.0.1:40112", 4.1e9, Some(("nginx", 812))),
                    socket("[2001:db8::64]:443", "[2001:db8:1234:5678:9abc:def0:1234:5678]:51000", 9.1e8, None),
                ],
            }),
            listeners: Some(vec![WaitingListener {
                address: "0.0.0.0:443".parse().unwrap(),
                n_waiting: 129,
                n_length: 128,
                is_full: true,
            }]),
            findings: vec![finding()],
            losses: vec!["nft: the rules cannot be listed: operation not permitted".to_owned()],
        }
    }

    /// Draws a view, and returns the screen as text.
    fn drawn(view: View, (width, height): (u16, u16), place: &mut Place) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let page: Page = Box::new(move |width| lines(&view, width));
        terminal.draw(|frame| draw(frame, &page, place)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let lines: Vec<String> = (0..height).map(|y| line(y).trim_end().to_owned()).collect();
        lines.join("\n") + "\n"
    }

    #[test]
    fn the_screen_of_a_busy_server_is_as_it_was_looked_at() {
        for (width, height) in [(80, 24), (120, 40), (40, 12)] {
            let screen = drawn(busy(), (width, height), &mut Place::default());
            let name = format!("{width}x{height}.txt");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens").join(&name);
            let known = fs::read_to_string(&path).unwrap_or_default();
            assert!(screen == known, "{name} differs; the screen is now:\n{screen}");
        }
    }

    #[test]
    fn every_line_fits_on_every_width() {
        for width in 20..200 {
            let long: Vec<String> = lines(&busy(), Width::Columns(width))
                .into_iter()
                .map(|line| line.text)
                .filter(|text| text.chars().count() > width)
                .collect();
            assert!(long.is_empty(), "at {width}: {long:?}");
        }
    }

    #[test]
    fn scrolling_ends_at_the_last_line_and_a_held_view_says_so() {
        let mut place = Place::default();
        let down = KeyEvent::new(KeyCode::Down, KeyModifiers::NONE);
        (0..500).for_each(|_| assert_eq!(place.obey(down), Ending::Due));
        place.obey(KeyEvent::new(KeyCode::Char(' '), KeyModifiers::NONE));
        let screen = drawn(busy(), (80, 24), &mut place);
        assert!(screen.contains("note  nft") && screen.contains("HELD   q ends"), "{screen}");
        let last = place.scrolled;
        place.obey(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE));
        assert_eq!(place.scrolled, last - 1, "one step back is seen at once");
        let press = |place: &mut Place, code| {
            place.obey(KeyEvent::new(code, KeyModifiers::NONE));
            drawn(busy(), (80, 24), place);
            place.scrolled
        };
        assert_eq!(press(&mut place, KeyCode::Home), 0);
        assert_eq!(press(&mut place, KeyCode::PageDown), last.min(23), "a page, or as far as the last line");
        assert_eq!(press(&mut place, KeyCode::PageUp), 0);
        assert_eq!(press(&mut place, KeyCode::End), last);
        assert_eq!(place.obey(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Ending::Quit);
        assert_eq!(place.obey(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), Ending::Quit);
    }

    #[test]
    fn a_column_that_is_a_fault_stays_where_one_without_faults_gives_way() {
        let text = |view: &View| lines(view, Width::Columns(62)).into_iter().map(|line| line.text).collect::<Vec<_>>();
        let mut view = busy();
        assert!(text(&view).iter().any(|line| line.contains("rx drops")), "{:?}", text(&view));
        view.tables.get_mut("interfaces").unwrap().get_mut("eth0").unwrap().insert("rx_dropped_per_sec", 0.0);
        assert!(!text(&view).iter().any(|line| line.contains("rx drops")), "{:?}", text(&view));
    }
}
