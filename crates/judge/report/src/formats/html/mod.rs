//! A single self-contained page for colleagues. It works without network and without JavaScript, on paper and on a phone.

mod blocks;
mod line_breaks;

use std::io;

use data_encoding::BASE64;
use fathom_model::Run;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use ring::digest;

use crate::{
    Format,
    document::{self, Block},
    recording::HostHistory,
    sanitize,
};

const STYLE: &str = include_str!("../../../assets/report.css");
const SCRIPT: &str = include_str!("../../../assets/report.js");

/// Writes the report as one HTML file.
#[derive(Debug, Clone, Copy)]
pub struct Html;

impl Format for Html {
    fn name(&self) -> &'static str {
        "html"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        let title = format!("{} · {}", run.plan.title, run.id);
        write_page(&title, &run.tool, &document::blocks(run), out)
    }
}

/// Writes a recording as one page.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_history_html(history: &HostHistory, out: &mut dyn io::Write) -> io::Result<()> {
    write_page(&document::title(history), &history.tool, &document::history(history), out)
}

fn write_page(title: &str, tool: &str, blocks: &[Block<'_>], out: &mut dyn io::Write) -> io::Result<()> {
    // The markup escapes all text from hosts. This removes the rest: characters that change the text direction or are not
    // text.
    out.write_all(sanitize::lines(&page(title, tool, blocks).into_string()).as_bytes())
}

/// Allows only the report's own style and script, by their digests.
fn policy() -> String {
    let hash = |text: &str| BASE64.encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

fn page(title: &str, tool: &str, blocks: &[Block<'_>]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(tool);
                meta name="referrer" content="no-referrer";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (blocks::all(blocks)) }
                div #tip hidden {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}
