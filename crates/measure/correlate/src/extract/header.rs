//! Values of header fields and cookies.

use fathom_import::import_tree::{AnswerField, ExtractSource, MatchIndex};

use super::{
    candidate::{Candidate, Robustness, Sighting, by_pattern},
    context,
};

pub(super) fn candidates(sighting: &Sighting<'_>) -> Vec<Candidate> {
    let head = &sighting.answer.one.head;
    let mut all = Vec::new();
    for occurrence in &sighting.in_head {
        let line_start = head[..occurrence.start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = head[occurrence.end..].find('\r').map_or(head.len(), |at| occurrence.end + at);
        let Some((name, value)) = head[line_start..line_end].split_once(':') else { continue };
        if occurrence.start < line_start + name.len() {
            continue;
        }
        let mut whole = |from: ExtractSource, name: &str| {
            all.push(Candidate {
                robustness: Robustness::Header,
                from,
                which: MatchIndex::Nth(1),
                name: name.to_owned(),
            });
        };
        let mut place = name;
        if name.eq_ignore_ascii_case("set-cookie") {
            place = value.split('=').next().unwrap_or_default().trim();
            whole(ExtractSource::Cookie(place.to_owned()), place);
        } else {
            whole(ExtractSource::Header(name.to_owned()), name);
        }
        // Only within its line, and only after its name.
        let value_start = line_end - value.trim_start().len();
        let before = &head[value_start.min(occurrence.start)..occurrence.start];
        let after = &head[occurrence.end..line_end];
        let stop = context::stop(after.as_bytes(), sighting.variant).unwrap_or_else(|| "([^\\r\\n]+)".to_owned());
        let start = format!("(?im)^{}: *", regex::escape(name));
        let patterns = std::iter::once(format!("{start}{}{stop}", regex::escape(before)))
            .chain(context::tails(before).into_iter().map(|tail| format!("{start}[^\\r\\n]*?{tail}{stop}")));
        for pattern in patterns {
            let text = (AnswerField::Headers, head.as_bytes());
            all.extend(by_pattern(Robustness::Header, text, &pattern, occurrence.start, place));
        }
    }
    all
}
