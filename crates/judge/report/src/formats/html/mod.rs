//! One self-contained page for colleagues: reads without network, without JavaScript, on paper and on a phone.

mod benchmark;
mod hosts;
mod overview;
mod probe;
mod steps;
mod test;

use std::io;

use data_encoding::BASE64;
use fathom_model::Run;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use ring::digest;

use crate::{Format, sanitize};

const STYLE: &str = include_str!("../../../assets/report.css");
const SCRIPT: &str = include_str!("../../../assets/report.js");

/// The report as one HTML file.
#[derive(Debug, Clone, Copy)]
pub struct Html;

impl Format for Html {
    fn name(&self) -> &'static str {
        "html"
    }

    fn extension(&self) -> &'static str {
        "html"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        // Markup escapes what hosts said; what remains are characters that turn the direction of text, or are no text.
        out.write_all(sanitize::lines(&page(run).into_string()).as_bytes())
    }
}

/// Allows our own style and script by their digests and nothing else.
fn policy() -> String {
    let hash = |text: &str| BASE64.encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

fn page(run: &Run) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(run.tool);
                meta name="referrer" content="no-referrer";
                title { (run.plan.title) " · " (run.id) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (overview::header(run))
                    (overview::verdict(run))
                    (probe::answered(run))
                    (overview::findings(run))
                    (overview::ladder(run))
                    (overview::table(run))
                    @for test in &run.tests { (test::section(run, test)) }
                    (hosts::section(run))
                    (hosts::repeat(run))
                }
                div #tip hidden {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// A table that scrolls within its own box when the screen is narrow.
fn scrolling(table: &Markup) -> Markup {
    html! { div.scroll tabindex="0" { (table) } }
}

/// A name that can stand behind a `#`.
fn anchor(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("test-{}", name.chars().map(plain).collect::<String>())
}
