//! The live view on a terminal: the newest lines, keys, and the terminal as it was before.

use std::io;

use fathom_model::units::Nanos;
use fathom_sys::clock;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text,
    widgets::Paragraph,
};

use crate::lines::{Line, Tone};

/// The last line.
const KEYS: &str = "q ends   space holds the view   ↑ ↓ scroll";

/// The terminal while the view is live; dropping it restores the terminal.
pub struct Screen {
    terminal: DefaultTerminal,
    is_held: bool,
    scrolled: u16,
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
    /// Takes the terminal over.
    ///
    /// # Errors
    /// If standard output is no terminal that can be taken over.
    pub fn open() -> io::Result<Self> {
        Ok(Self { terminal: ratatui::try_init()?, is_held: false, scrolled: 0 })
    }

    /// Shows the lines until a time on the monotonic clock, and obeys keys meanwhile.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn show_until(&mut self, lines: &mut Vec<Line>, newest: Vec<Line>, deadline: Nanos) -> io::Result<Ending> {
        if !self.is_held {
            *lines = newest;
        }
        loop {
            self.draw(lines)?;
            let left = deadline.since(clock::now());
            if left == Nanos::ZERO {
                return Ok(Ending::Due);
            }
            if event::poll(left.as_duration())?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && self.obey(key, lines.len()) == Ending::Quit
            {
                return Ok(Ending::Quit);
            }
        }
    }

    fn obey(&mut self, key: KeyEvent, n_lines: usize) -> Ending {
        let last = u16::try_from(n_lines.saturating_sub(1)).unwrap_or(u16::MAX);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ending::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ending::Quit,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = (self.scrolled + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            _ => {}
        }
        Ending::Due
    }

    fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let shown: Vec<text::Line<'_>> =
            lines.iter().map(|line| text::Line::styled(line.text.as_str(), style(line.tone))).collect();
        let keys = if self.is_held { format!("HELD   {KEYS}") } else { KEYS.to_owned() };
        let scrolled = self.scrolled;
        self.terminal.draw(|frame| {
            let [body, foot] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
            frame.render_widget(Paragraph::new(shown).scroll((scrolled, 0)), body);
            frame.render_widget(Paragraph::new(keys).style(style(Tone::Faint)), foot);
        })?;
        Ok(())
    }
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
