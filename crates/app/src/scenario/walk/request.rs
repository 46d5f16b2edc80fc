//! Requests as they are sent: whole if nothing in them changes, patched in place where widths are fixed, else put together.

use super::text::{Piece, Place, Scope, Text, Value};

/// A length is written right-aligned in so many bytes: spaces before a value are part of no value (RFC 9110 section 5.5).
const LENGTH_WIDTH: usize = 10;

/// What a request says, before it is compiled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: Text,
    /// `Host` among them; without `Content-Length`.
    pub(crate) fields: Vec<(String, Text)>,
    pub(crate) body: Option<Text>,
}

/// A place in a prepared request that is written anew each time.
#[derive(Debug, Clone)]
struct Patch {
    at: usize,
    width: usize,
    value: Value,
    place: Place,
}

/// How much of a request is known before the run.
#[derive(Debug, Clone)]
enum Form {
    /// All of it.
    Fixed,
    /// All but some places of fixed width.
    Patched(Vec<Patch>),
    /// Pieces, of which some have any length.
    Gathered(Vec<Part>),
}

#[derive(Debug, Clone)]
enum Part {
    Literal(Box<[u8]>),
    Value(Value, Place),
    /// The field of the body's length, and then the end of the head, where cookies go before.
    EndOfHead {
        is_measured: bool,
    },
}

/// A compiled request. Each worker has clones of its own, into which it patches.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    form: Form,
    /// The whole request, with places to be patched; empty when it is put together.
    prepared: Vec<u8>,
    /// Where the empty line begins in it.
    head_end: usize,
    scratch: Vec<u8>,
}

impl Request {
    pub(crate) fn compile(draft: &Draft) -> Self {
        let parts = parts(draft);
        let is_fixed = |part: &Part| match part {
            Part::Value(value, _) => value.fixed_width().is_some(),
            Part::Literal(_) | Part::EndOfHead { .. } => true,
        };
        if !parts.iter().all(is_fixed) {
            let form = Form::Gathered(parts);
            return Self { form, prepared: Vec::new(), head_end: 0, scratch: Vec::new() };
        }
        let mut prepared = Vec::new();
        let mut patches = Vec::new();
        let mut head_end = 0;
        let body_len: usize = draft.body.iter().flat_map(|body| &body.0).map(width_of).sum();
        for part in parts {
            match part {
                Part::Literal(bytes) => prepared.extend_from_slice(&bytes),
                Part::Value(value, place) => {
                    let width = value.fixed_width().unwrap_or(0);
                    patches.push(Patch { at: prepared.len(), width, value, place });
                    prepared.resize(prepared.len() + width, b'0');
                }
                Part::EndOfHead { is_measured } => {
                    if is_measured {
                        prepared.extend_from_slice(format!("Content-Length: {body_len}\r\n").as_bytes());
                    }
                    head_end = prepared.len();
                    prepared.extend_from_slice(b"\r\n");
                }
            }
        }
        let form = if patches.is_empty() { Form::Fixed } else { Form::Patched(patches) };
        Self { form, prepared, head_end, scratch: Vec::new() }
    }

    /// The bytes for a user; `cookies` is given the target, and writes a line of the head or nothing.
    pub(crate) fn bytes(&mut self, scope: &mut Scope<'_>, cookies: impl FnOnce(&[u8], &mut Vec<u8>)) -> &[u8] {
        if let Form::Gathered(parts) = &self.form {
            self.prepared.clear();
            self.head_end = gather(parts, scope, &mut self.prepared);
            self.with_cookies(cookies)
        } else {
            if let Form::Patched(patches) = &self.form {
                for patch in patches {
                    self.scratch.clear();
                    scope.put(&patch.value, patch.place, &mut self.scratch);
                    // A number that has outgrown its width keeps its last digits.
                    let surplus = self.scratch.len().saturating_sub(patch.width);
                    self.prepared[patch.at..patch.at + patch.width].copy_from_slice(&self.scratch[surplus..]);
                }
            }
            self.with_cookies(cookies)
        }
    }

    fn with_cookies(&mut self, cookies: impl FnOnce(&[u8], &mut Vec<u8>)) -> &[u8] {
        self.scratch.clear();
        cookies(target_of(&self.prepared), &mut self.scratch);
        if self.scratch.is_empty() {
            return &self.prepared;
        }
        if matches!(self.form, Form::Gathered(_)) {
            let end = self.head_end;
            self.prepared.splice(end..end, self.scratch.drain(..));
            return &self.prepared;
        }
        // The prepared bytes stay as they are for the next user, who may have no cookies.
        let line_len = self.scratch.len();
        self.scratch.extend_from_slice(&self.prepared);
        self.scratch[..line_len + self.head_end].rotate_left(line_len);
        &self.scratch
    }
}

/// What a request asks for: the second word of its first line.
pub(crate) fn target_of(request: &[u8]) -> &[u8] {
    request.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

fn width_of(piece: &Piece) -> usize {
    match piece {
        Piece::Literal(bytes) => bytes.len(),
        Piece::Value(value) => value.fixed_width().unwrap_or(0),
    }
}

fn parts(draft: &Draft) -> Vec<Part> {
    let mut parts = Parts(Vec::new());
    parts.literal(draft.method.as_bytes());
    parts.literal(b" ");
    parts.text(&draft.target, Place::Target);
    parts.literal(b" HTTP/1.1\r\n");
    for (name, value) in &draft.fields {
        parts.literal(name.as_bytes());
        parts.literal(b": ");
        parts.text(value, Place::Field);
        parts.literal(b"\r\n");
    }
    // Methods that are expected to bring content say so when it is empty (RFC 9110 section 8.6).
    let is_measured = draft.body.is_some() || ["POST", "PUT", "PATCH"].contains(&draft.method.as_str());
    parts.0.push(Part::EndOfHead { is_measured });
    if let Some(body) = &draft.body {
        parts.text(body, Place::Free);
    }
    parts.0
}

struct Parts(Vec<Part>);

impl Parts {
    /// Neighbours become one.
    fn literal(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(Part::Literal(before)) => *before = [before, bytes].concat().into(),
            _ => self.0.push(Part::Literal(bytes.into())),
        }
    }

    fn text(&mut self, text: &Text, place: Place) {
        for piece in &text.0 {
            match piece {
                Piece::Literal(bytes) => self.literal(bytes),
                Piece::Value(value) => self.0.push(Part::Value(value.clone(), place)),
            }
        }
    }
}

/// Puts the parts together; gives the place where the empty line begins.
fn gather(parts: &[Part], scope: &mut Scope<'_>, bytes: &mut Vec<u8>) -> usize {
    let (mut head_end, mut length_at) = (0, None);
    for part in parts {
        match part {
            Part::Literal(literal) => bytes.extend_from_slice(literal),
            Part::Value(value, place) => scope.put(value, *place, bytes),
            Part::EndOfHead { is_measured } => {
                if *is_measured {
                    bytes.extend_from_slice(b"Content-Length: ");
                    length_at = Some(bytes.len());
                    bytes.extend_from_slice(&[b' '; LENGTH_WIDTH]);
                    bytes.extend_from_slice(b"\r\n");
                }
                head_end = bytes.len();
                bytes.extend_from_slice(b"\r\n");
            }
        }
    }
    if let Some(begin) = length_at {
        let mut rest = bytes.len() - head_end - b"\r\n".len();
        let mut at = begin + LENGTH_WIDTH;
        loop {
            at -= 1;
            bytes[at] = b"0123456789"[rest % 10];
            rest /= 10;
            if rest == 0 || at == begin {
                break;
            }
        }
    }
    head_end
}

#[cfg(test)]
mod tests {
    use super::{
        super::text::{Filter, Moment, Numbers, Slot, Source},
        *,
    };

    fn number(width: u8) -> Piece {
        let source = Source::Random { low: 7, high: 7 };
        Piece::Value(Value { source, width: Some(width), filters: [].into() })
    }

    fn slot(filters: &[Filter]) -> Piece {
        Piece::Value(Value { source: Source::Slot(0), width: None, filters: filters.into() })
    }

    fn literal(text: &str) -> Piece {
        Piece::Literal(text.as_bytes().into())
    }

    fn draft(target: Vec<Piece>, body: Option<Vec<Piece>>) -> Draft {
        let method = if body.is_some() { "POST" } else { "GET" };
        let fields = vec![("Host".to_owned(), Text::from("h"))];
        Draft { method: method.to_owned(), target: Text(target), fields, body: body.map(Text) }
    }

    fn scope(slots: &[Slot]) -> Scope<'_> {
        let (numbers, chance) = (Numbers::Again([].iter()), fastrand::Rng::with_seed(1));
        Scope { slots, rows: &[], sets: &[], moment: Moment::default(), numbers, chance }
    }

    fn sent(request: &mut Request, slot: &str, cookies: &str) -> String {
        let slots = [Slot { text: slot.as_bytes().to_vec(), is_set: true }];
        let mut scope = scope(&slots);
        let bytes = request.bytes(&mut scope, |_, line| line.extend_from_slice(cookies.as_bytes()));
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_request_without_values_is_ready_before_the_run_and_always_the_same_bytes() {
        let mut request = Request::compile(&draft(vec![literal("/a")], None));
        assert!(matches!(request.form, Form::Fixed));
        let mut scope = scope(&[]);
        let one = request.bytes(&mut scope, |_, _| ()).as_ptr_range();
        assert_eq!(request.bytes(&mut scope, |_, _| ()).as_ptr_range(), one);
        assert_eq!(sent(&mut request, "", ""), "GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    }

    #[test]
    fn numbers_of_fixed_width_are_patched_in_place() {
        let mut request = Request::compile(&draft(vec![literal("/"), number(3)], Some(vec![literal("n="), number(2)])));
        assert!(matches!(request.form, Form::Patched(_)));
        let expected = "POST /007 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nn=07";
        for _ in 0..2 {
            assert_eq!(sent(&mut request, "", ""), expected);
        }
    }

    #[test]
    fn values_of_any_length_are_put_together_and_the_body_is_measured() {
        let mut request = Request::compile(&draft(vec![literal("/"), slot(&[])], Some(vec![slot(&[Filter::Json])])));
        let head = "HTTP/1.1\r\nHost: h\r\nContent-Length:";
        assert_eq!(sent(&mut request, "a b\"", ""), format!("POST /a%20b\" {head}          5\r\n\r\na b\\\""));
        assert_eq!(
            sent(&mut request, "0123456789", ""),
            format!("POST /0123456789 {head}         10\r\n\r\n0123456789")
        );
        assert_eq!(sent(&mut request, "", ""), format!("POST / {head}          0\r\n\r\n"));
    }

    #[test]
    fn cookies_go_at_the_end_of_the_head_of_every_form() {
        for (target, body) in [
            (vec![literal("/a")], vec![literal("b")]),
            (vec![literal("/"), number(1)], vec![literal("b")]),
            (vec![literal("/"), slot(&[])], vec![literal("b")]),
        ] {
            let mut request = Request::compile(&draft(target, Some(body)));
            let plain = sent(&mut request, "a", "");
            let with = sent(&mut request, "a", "Cookie: s=1\r\n");
            let (head, body) = plain.split_once("\r\n\r\n").unwrap();
            assert_eq!(with, format!("{head}\r\nCookie: s=1\r\n\r\n{body}"));
            assert_eq!(sent(&mut request, "a", ""), plain, "the next user has no cookies");
        }
    }

    #[test]
    fn an_empty_body_is_announced_where_one_is_expected() {
        let mut post =
            Request::compile(&Draft { method: "PUT".to_owned(), target: Text::from("/"), ..Draft::default() });
        assert_eq!(sent(&mut post, "", ""), "PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    }
}
