//! Finds the values of known secrets in texts, whatever name they have there.

use aho_corasick::AhoCorasick;

use super::{
    super::{
        encode::form,
        import_tree::{ImportText, TextCoding},
        write::coded,
    },
    columns::Column,
    names::ValueRole,
    text_form::{TextForm, TextValue},
};

/// Shorter values are found by chance.
const CHARS_MIN: usize = 4;
/// Whatever begins like a value is compared with the whole of it.
const BEGINNING_MAX: usize = 48;

/// The values of secrets, in all forms in which a text may have them.
pub(super) struct KnownValues {
    known: Vec<KnownValue>,
    /// Finds the beginning of each.
    automaton: AhoCorasick,
}

/// A value in one form.
struct KnownValue {
    name: String,
    plain: String,
    role: ValueRole,
    written: String,
}

impl KnownValues {
    /// The values of columns, and those of the cookies among them.
    pub(super) fn of(columns: &[Column]) -> Self {
        let mut known = Vec::new();
        for Column { name, value, role } in columns {
            add(&mut known, name, value, *role);
            if name.starts_with("cookie") {
                let cookies = value.split("; ").filter_map(|cookie| cookie.split_once('='));
                cookies.for_each(|(name, value)| add(&mut known, name, value, *role));
            }
        }
        let beginnings = known.iter().map(|known| {
            let bytes = known.written.as_bytes();
            &bytes[..bytes.len().min(BEGINNING_MAX)]
        });
        let automaton = AhoCorasick::new(beginnings).expect("a recording has fewer bytes than an automaton has states");
        Self { known, automaton }
    }

    /// The values in a text, each with its name; they may overlap.
    pub(super) fn find<'k>(&'k self, text: &str, form: TextForm) -> Vec<(&'k str, ValueRole, TextValue)> {
        let found = self.automaton.find_overlapping_iter(text).filter_map(|found| {
            let known = &self.known[found.pattern().as_usize()];
            let range = found.start()..found.start() + known.written.len();
            let is_whole = text.get(range.clone()) == Some(known.written.as_str());
            let value = form.value_at(text, range).filter(|_| is_whole)?;
            (value.plain == known.plain).then_some((known.name.as_str(), known.role, value))
        });
        found.collect()
    }
}

/// Adds a value in each of its forms.
fn add(known: &mut Vec<KnownValue>, name: &str, plain: &str, role: ValueRole) {
    // Who has `password` as the password has it as a name everywhere, too.
    if plain.chars().count() < CHARS_MIN || ValueRole::of(plain).is_some() {
        return;
    }
    let mut forms = vec![plain.to_owned(), form(ImportText::literal(plain)).to_string()];
    forms.extend(coded(plain, TextCoding::Json));
    // Within an element, XML needs no escapes of quotes.
    forms.push(plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"));
    forms.extend(coded(plain, TextCoding::Html));
    forms.sort_unstable();
    forms.dedup();
    known.extend(forms.into_iter().map(|written| {
        let (name, plain) = (name.to_owned(), plain.to_owned());
        KnownValue { name, plain, role, written }
    }));
}
