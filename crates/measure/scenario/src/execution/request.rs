//! Requests as they are sent: fixed if nothing in them changes, patched in place if all widths are fixed, otherwise assembled.

use std::{collections::BTreeSet, ops::Range};

use super::text::{CompiledText, TextContext, TextPiece, TextValue, ValueScope};

/// A length is written right-aligned in this many bytes: spaces before a value are not part of it (RFC 9110 section 5.5).
const LENGTH_WIDTH: usize = 10;
/// The beginning of the line of a request's own cookies.
const COOKIE: &[u8] = b"Cookie: ";

/// The content of a request, before it is compiled.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestDraft {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: CompiledText,
    /// With `Host`, without `Content-Length`.
    pub(crate) fields: Vec<(String, CompiledText)>,
    /// Its own cookies, to which those of the user are added.
    pub(crate) cookies: Option<CompiledText>,
    pub(crate) body: Option<CompiledText>,
}

impl RequestDraft {
    /// Its variables, each once.
    pub(crate) fn slots(&self) -> BTreeSet<u16> {
        let fields = self.fields.iter().map(|(_, value)| value);
        let texts = fields.chain(&self.cookies).chain(&self.body).chain([&self.target]);
        texts.flat_map(CompiledText::slots).collect()
    }
}

/// A place in a prepared request that is rewritten for each send.
#[derive(Debug, Clone)]
struct RequestPatch {
    at: usize,
    width: usize,
    value: TextValue,
    context: TextContext,
}

/// How much of a request is known before the run.
#[derive(Debug, Clone)]
enum RequestLayout {
    /// All of it.
    Fixed,
    /// All but some places of fixed width.
    Patched(Vec<RequestPatch>),
    /// Pieces, some of which have any length.
    Pieces(Vec<RequestPart>),
}

#[derive(Debug, Clone)]
enum RequestPart {
    Literal(Box<[u8]>),
    Value(TextValue, TextContext),
    /// The field of the body's length.
    Length,
    /// The value of the last field, with the request's own cookies, begins here.
    Cookies,
    EndOfHead,
}

/// The offsets in a head that are needed to add cookies.
#[derive(Debug, Clone, Copy, Default)]
struct HeadOffsets {
    /// The beginning of the value of its last field, if that has its own cookies.
    cookies: Option<usize>,
    /// The beginning of the empty line.
    end: usize,
}

/// Where the cookies of a user are inserted: after the request's own, or on a separate line.
struct CookieInsertion {
    own_cookies: Range<usize>,
    lead: &'static [u8],
    tail: &'static [u8],
    at: usize,
}

impl CookieInsertion {
    fn new(own: Option<Range<usize>>, head_end: usize) -> Self {
        match own {
            None => Self { own_cookies: 0..0, lead: b"Cookie: ", tail: b"\r\n", at: head_end },
            Some(own) => {
                let lead: &[u8] = if own.is_empty() { b"" } else { b"; " };
                Self { lead, tail: b"", at: own.end, own_cookies: own }
            }
        }
    }

    /// Writes the inserted text to `line`, which stays empty if there are no cookies.
    fn fill(&self, request: &[u8], cookies: impl FnOnce(&[u8], &[u8], &mut Vec<u8>), line: &mut Vec<u8>) {
        line.clear();
        line.extend_from_slice(self.lead);
        cookies(target_of(request), &request[self.own_cookies.clone()], line);
        if line.len() == self.lead.len() {
            line.clear();
        } else {
            line.extend_from_slice(self.tail);
        }
    }
}

/// Adds cookies to a request given as bytes; `cookies` receives its target and its own cookies.
pub(crate) fn add_cookies(request: &mut Vec<u8>, cookies: impl FnOnce(&[u8], &[u8], &mut Vec<u8>)) {
    let head_end = memchr::memmem::find(request, b"\r\n\r\n").map_or(request.len(), |at| at + 2);
    let mut begin = 0;
    let own = request[..head_end].split_inclusive(|byte| *byte == b'\n').find_map(|line| {
        let at = begin + COOKIE.len();
        begin += line.len();
        let is_own = line.get(..COOKIE.len()).is_some_and(|name| name.eq_ignore_ascii_case(COOKIE));
        is_own.then(|| at..(begin - b"\r\n".len()).max(at))
    });
    let (gap, mut line) = (CookieInsertion::new(own, head_end), Vec::new());
    gap.fill(request, cookies, &mut line);
    request.splice(gap.at..gap.at, line);
}

/// A compiled request. Each worker patches its own clones.
#[derive(Debug, Clone)]
pub(crate) struct CompiledRequest {
    form: RequestLayout,
    /// The whole request, with the places to patch; empty if it is assembled.
    prepared: Vec<u8>,
    head: HeadOffsets,
    scratch: Vec<u8>,
}

impl CompiledRequest {
    pub(crate) fn compile(draft: &RequestDraft) -> Self {
        let parts = parts(draft);
        let is_fixed = |part: &RequestPart| match part {
            RequestPart::Value(value, _) => value.fixed_width().is_some(),
            _ => true,
        };
        if !parts.iter().all(is_fixed) {
            let form = RequestLayout::Pieces(parts);
            return Self { form, prepared: Vec::new(), head: HeadOffsets::default(), scratch: Vec::new() };
        }
        let mut prepared = Vec::new();
        let mut patches = Vec::new();
        let mut head = HeadOffsets::default();
        let body_len: usize = draft.body.iter().flat_map(|body| &body.0).map(width_of).sum();
        for part in parts {
            match part {
                RequestPart::Literal(bytes) => prepared.extend_from_slice(&bytes),
                RequestPart::Value(value, place) => {
                    let width = value.fixed_width().unwrap_or(0);
                    patches.push(RequestPatch { at: prepared.len(), width, value, context: place });
                    prepared.resize(prepared.len() + width, b'0');
                }
                RequestPart::Length => prepared.extend_from_slice(format!("Content-Length: {body_len}\r\n").as_bytes()),
                RequestPart::Cookies => head.cookies = Some(prepared.len()),
                RequestPart::EndOfHead => {
                    head.end = prepared.len();
                    prepared.extend_from_slice(b"\r\n");
                }
            }
        }
        let form = if patches.is_empty() { RequestLayout::Fixed } else { RequestLayout::Patched(patches) };
        Self { form, prepared, head, scratch: Vec::new() }
    }

    /// The bytes for a user; `cookies` receives the target and the request's own cookies, and writes the matching ones.
    pub(crate) fn bytes(
        &mut self,
        scope: &mut ValueScope<'_>,
        cookies: impl FnOnce(&[u8], &[u8], &mut Vec<u8>),
    ) -> &[u8] {
        if let RequestLayout::Pieces(parts) = &self.form {
            self.prepared.clear();
            self.head = assemble(parts, scope, &mut self.prepared);
            self.with_cookies(cookies)
        } else {
            if let RequestLayout::Patched(patches) = &self.form {
                for patch in patches {
                    self.scratch.clear();
                    scope.put(&patch.value, patch.context, &mut self.scratch);
                    // A number that has outgrown its width keeps its last digits.
                    let surplus = self.scratch.len().saturating_sub(patch.width);
                    self.prepared[patch.at..patch.at + patch.width].copy_from_slice(&self.scratch[surplus..]);
                }
            }
            self.with_cookies(cookies)
        }
    }

    fn with_cookies(&mut self, cookies: impl FnOnce(&[u8], &[u8], &mut Vec<u8>)) -> &[u8] {
        let own = self.head.cookies.map(|begin| begin..self.head.end - b"\r\n".len());
        let gap = CookieInsertion::new(own, self.head.end);
        gap.fill(&self.prepared, cookies, &mut self.scratch);
        if self.scratch.is_empty() {
            return &self.prepared;
        }
        if matches!(self.form, RequestLayout::Pieces(_)) {
            self.prepared.splice(gap.at..gap.at, self.scratch.drain(..));
            return &self.prepared;
        }
        // The prepared bytes stay unchanged for the next user, who may have no cookies.
        let line_len = self.scratch.len();
        self.scratch.extend_from_slice(&self.prepared);
        self.scratch[..line_len + gap.at].rotate_left(line_len);
        &self.scratch
    }
}

/// The target of a request: the second word of its first line.
pub(crate) fn target_of(request: &[u8]) -> &[u8] {
    request.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

fn width_of(piece: &TextPiece) -> usize {
    match piece {
        TextPiece::Literal(bytes) => bytes.len(),
        TextPiece::Value(value) => value.fixed_width().unwrap_or(0),
    }
}

fn parts(draft: &RequestDraft) -> Vec<RequestPart> {
    let mut parts = RequestParts(Vec::new());
    parts.literal(draft.method.as_bytes());
    parts.literal(b" ");
    parts.text(&draft.target, TextContext::Target);
    parts.literal(b" HTTP/1.1\r\n");
    for (name, value) in &draft.fields {
        parts.literal(name.as_bytes());
        parts.literal(b": ");
        parts.text(value, TextContext::Field);
        parts.literal(b"\r\n");
    }
    // Methods that usually carry content announce its length even if it is empty (RFC 9110 section 8.6).
    let is_measured = draft.body.is_some() || ["POST", "PUT", "PATCH"].contains(&draft.method.as_str());
    if is_measured {
        parts.0.push(RequestPart::Length);
    }
    if let Some(cookies) = &draft.cookies {
        parts.literal(COOKIE);
        parts.0.push(RequestPart::Cookies);
        parts.text(cookies, TextContext::Field);
        parts.literal(b"\r\n");
    }
    parts.0.push(RequestPart::EndOfHead);
    if let Some(body) = &draft.body {
        parts.text(body, TextContext::Free);
    }
    parts.0
}

struct RequestParts(Vec<RequestPart>);

impl RequestParts {
    /// Adjacent literals are merged.
    fn literal(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(RequestPart::Literal(before)) => *before = [before, bytes].concat().into(),
            _ => self.0.push(RequestPart::Literal(bytes.into())),
        }
    }

    fn text(&mut self, text: &CompiledText, place: TextContext) {
        for piece in &text.0 {
            match piece {
                TextPiece::Literal(bytes) => self.literal(bytes),
                TextPiece::Value(value) => self.0.push(RequestPart::Value(value.clone(), place)),
            }
        }
    }
}

/// Assembles the parts.
fn assemble(parts: &[RequestPart], scope: &mut ValueScope<'_>, bytes: &mut Vec<u8>) -> HeadOffsets {
    let (mut head, mut length_at) = (HeadOffsets::default(), None);
    for part in parts {
        match part {
            RequestPart::Literal(literal) => bytes.extend_from_slice(literal),
            RequestPart::Value(value, place) => scope.put(value, *place, bytes),
            RequestPart::Length => {
                bytes.extend_from_slice(b"Content-Length: ");
                length_at = Some(bytes.len());
                bytes.extend_from_slice(&[b' '; LENGTH_WIDTH]);
                bytes.extend_from_slice(b"\r\n");
            }
            RequestPart::Cookies => head.cookies = Some(bytes.len()),
            RequestPart::EndOfHead => {
                head.end = bytes.len();
                bytes.extend_from_slice(b"\r\n");
            }
        }
    }
    if let Some(begin) = length_at {
        let mut rest = bytes.len() - head.end - b"\r\n".len();
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
    head
}

#[cfg(test)]
mod tests {
    use super::{
        super::text::{CounterNumbers, Filter, ValueInputs, ValueSource, VariableSlot},
        *,
    };

    fn number(width: u8) -> TextPiece {
        let source = ValueSource::Random { low: 7, high: 7 };
        TextPiece::Value(TextValue { source, width: Some(width), filters: [].into() })
    }

    fn slot(filters: &[Filter]) -> TextPiece {
        TextPiece::Value(TextValue { source: ValueSource::Slot(0), width: None, filters: filters.into() })
    }

    fn literal(text: &str) -> TextPiece {
        TextPiece::Literal(text.as_bytes().into())
    }

    fn draft(target: Vec<TextPiece>, body: Option<Vec<TextPiece>>) -> RequestDraft {
        let method = if body.is_some() { "POST" } else { "GET" };
        let fields = vec![("Host".to_owned(), CompiledText::from("h"))];
        RequestDraft {
            method: method.to_owned(),
            target: CompiledText(target),
            fields,
            cookies: None,
            body: body.map(CompiledText),
        }
    }

    fn scope(slots: &[VariableSlot]) -> ValueScope<'_> {
        let (numbers, chance) = (CounterNumbers::Replay([].iter()), fastrand::Rng::with_seed(1));
        ValueScope { slots, rows: &[], sets: &[], moment: ValueInputs::default(), numbers, rng: chance }
    }

    /// The bytes sent with these cookies of the user.
    fn sent(request: &mut CompiledRequest, slot: &str, cookies: &str) -> String {
        let slots = [VariableSlot { text: slot.as_bytes().to_vec(), is_set: true }];
        let mut scope = scope(&slots);
        let bytes = request.bytes(&mut scope, |_, _, pairs| pairs.extend_from_slice(cookies.as_bytes()));
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_request_without_values_is_ready_before_the_run_and_always_the_same_bytes() {
        let mut request = CompiledRequest::compile(&draft(vec![literal("/a")], None));
        assert!(matches!(request.form, RequestLayout::Fixed));
        let mut scope = scope(&[]);
        let one = request.bytes(&mut scope, |_, _, _| ()).as_ptr_range();
        assert_eq!(request.bytes(&mut scope, |_, _, _| ()).as_ptr_range(), one);
        assert_eq!(sent(&mut request, "", ""), "GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    }

    #[test]
    fn numbers_of_fixed_width_are_patched_in_place() {
        let mut request =
            CompiledRequest::compile(&draft(vec![literal("/"), number(3)], Some(vec![literal("n="), number(2)])));
        assert!(matches!(request.form, RequestLayout::Patched(_)));
        let expected = "POST /007 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nn=07";
        for _ in 0..2 {
            assert_eq!(sent(&mut request, "", ""), expected);
        }
    }

    #[test]
    fn values_of_any_length_are_put_together_and_the_body_is_measured() {
        let mut request =
            CompiledRequest::compile(&draft(vec![literal("/"), slot(&[])], Some(vec![slot(&[Filter::Json])])));
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
            let mut request = CompiledRequest::compile(&draft(target, Some(body)));
            let plain = sent(&mut request, "a", "");
            let with = sent(&mut request, "a", "s=1");
            let (head, body) = plain.split_once("\r\n\r\n").unwrap();
            assert_eq!(with, format!("{head}\r\nCookie: s=1\r\n\r\n{body}"));
            assert_eq!(sent(&mut request, "a", ""), plain, "the next user has no cookies");
        }
    }

    #[test]
    fn own_cookies_and_those_of_the_user_are_in_one_line() {
        for cookies in [vec![literal("own=1")], vec![literal("own="), number(1)], vec![literal("own="), slot(&[])]] {
            let last = if cookies.len() == 1 { "1" } else { "7" };
            let draft = draft(vec![literal("/a")], Some(vec![literal("b")]));
            let mut request = CompiledRequest::compile(&RequestDraft { cookies: Some(CompiledText(cookies)), ..draft });
            let head = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length:";
            for (cookies, expected) in [("", ""), ("s=1; t=2", "; s=1; t=2"), ("", "")] {
                let sent = sent(&mut request, "7", cookies);
                let (length, rest) = sent.strip_prefix(head).unwrap().split_once("\r\n").unwrap();
                assert_eq!((length.trim(), rest), ("1", &*format!("Cookie: own={last}{expected}\r\n\r\nb")));
                let slots = [VariableSlot { text: b"7".to_vec(), is_set: true }];
                let mut scope = scope(&slots);
                let mut seen = Vec::new();
                request.bytes(&mut scope, |target, own, _| seen = [target, b" ", own].concat()).to_vec();
                assert!(seen.starts_with(b"/a own="), "{seen:?}");
            }
        }
        let mut empty = CompiledRequest::compile(&RequestDraft {
            cookies: Some(CompiledText(vec![slot(&[])])),
            ..draft(vec![literal("/")], None)
        });
        assert_eq!(sent(&mut empty, "", "s=1"), "GET / HTTP/1.1\r\nHost: h\r\nCookie: s=1\r\n\r\n");
    }

    #[test]
    fn cookies_are_added_to_bytes_as_well() {
        let added = |head: &str| {
            let mut request = format!("GET /x HTTP/1.1\r\n{head}\r\nbody").into_bytes();
            add_cookies(&mut request, |target, own, pairs| {
                assert_eq!((target, own.is_empty()), (b"/x".as_slice(), !head.contains('=')));
                pairs.extend_from_slice(b"s=1");
            });
            String::from_utf8(request).unwrap()
        };
        assert_eq!(added("Host: h\r\n"), "GET /x HTTP/1.1\r\nHost: h\r\nCookie: s=1\r\n\r\nbody");
        assert_eq!(added("Cookie: a=1\r\nX: y\r\n"), "GET /x HTTP/1.1\r\nCookie: a=1; s=1\r\nX: y\r\n\r\nbody");
    }

    #[test]
    fn an_empty_body_is_announced_where_one_is_expected() {
        let mut post = CompiledRequest::compile(&RequestDraft {
            method: "PUT".to_owned(),
            target: CompiledText::from("/"),
            ..RequestDraft::default()
        });
        assert_eq!(sent(&mut post, "", ""), "PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    }
}
