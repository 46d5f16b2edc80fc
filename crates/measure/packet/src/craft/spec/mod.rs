//! A frame described in one line: headers from the outermost to the innermost, with the fields that differ from their defaults.
//!
//! `docs/frames-language.md` has the grammar. Parsing checks the contents of the line and reports each fault with its position.
//! The rest is filled in when the frame is built.

mod fault;
mod token;
mod value;

use data_encoding::HEXLOWER_PERMISSIVE;
use fathom_model::settings::nearest;

pub use fault::{FrameSpecError, SpecFault, TextSpan};
pub(super) use value::{Value, ValueSequence};

pub(super) use fault::LocatedFault;
use token::Token;

use super::{
    ChangePer,
    header::{FieldSpec, HEADERS, HeaderSpec, OptionSyntax, PositionalFields},
};
use fathom_wire::Mark;

/// Longer than any frame written in hexadecimal.
const LINE_MAX: usize = 40_000;
/// More than any stack of labels and tags in use.
const HEADERS_MAX: usize = 24;

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrameSpec {
    /// The text of the line.
    pub(in crate::craft) text: String,
    /// The headers, from the outermost to the innermost.
    pub(in crate::craft) layers: Vec<SpecHeader>,
    /// The payload, if the line has one.
    pub(in crate::craft) payload: Option<Payload>,
}

/// A header and its fields.
#[derive(Debug, Clone)]
pub(in crate::craft) struct SpecHeader {
    pub(in crate::craft) header: &'static HeaderSpec,
    /// The position of its keyword.
    pub(in crate::craft) span: TextSpan,
    /// The fields that the line sets; no two overlap.
    pub(in crate::craft) fields: Vec<(&'static FieldSpec, Value)>,
    /// Options after the fixed part.
    pub(in crate::craft) options: Vec<u8>,
}

/// The data after the headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::craft) struct Payload {
    /// The bytes, with zeros in place of the mark.
    pub(in crate::craft) bytes: Vec<u8>,
    /// The offset of the mark in `bytes`, always even.
    pub(in crate::craft) mark_at: Option<usize>,
    /// The fill after `bytes`; `None` if the line has none.
    pub(in crate::craft) fill: Option<PayloadFill>,
}

/// How the rest of a frame is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::craft) enum PayloadFill {
    /// This byte, repeated.
    Byte(u8),
    /// Pseudorandom bytes from the seed.
    Random,
}

impl PartialEq for SpecHeader {
    fn eq(&self, other: &Self) -> bool {
        self.header.keyword == other.header.keyword
            && (&self.span, &self.fields, &self.options) == (&other.span, &other.fields, &other.options)
    }
}

impl Eq for SpecHeader {}

impl FrameSpec {
    /// Parses a line.
    ///
    /// # Errors
    /// The first fault, with its position and, where possible, a suggestion.
    pub fn read(text: &str) -> Result<Self, FrameSpecError> {
        SpecParser::read(text).map_err(|fault| fault.of(text))
    }
}

impl HeaderSpec {
    /// The keywords of all headers, for a line without any.
    pub(super) fn words() -> String {
        HEADERS.iter().map(|header| header.keyword).collect::<Vec<_>>().join(", ")
    }

    fn own_words(&self) -> impl Iterator<Item = &'static str> {
        let fields = self.fields.iter().map(|field| field.keyword);
        let names = self.names.iter().map(|name| name.keyword).filter(|name| self.field(name).is_none());
        fields.chain(names).chain(self.options.iter().map(|(word, _)| *word))
    }

    /// The keywords that are valid in this header.
    pub(super) fn vocabulary(&self) -> String {
        self.own_words().collect::<Vec<_>>().join(", ")
    }
}

/// A position among the tokens of a line.
struct SpecParser<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<(Token<'a>, TextSpan)>>,
    end: usize,
}

impl<'a> SpecParser<'a> {
    fn read(text: &'a str) -> Result<FrameSpec, LocatedFault> {
        if text.len() > LINE_MAX {
            return Err(SpecFault::TooLong(LINE_MAX).at(LINE_MAX..text.len()));
        }
        let mut reader = Self { tokens: token::tokens(text)?.into_iter().peekable(), end: text.len() };
        let mut line = FrameSpec { text: text.to_owned(), ..FrameSpec::default() };
        while reader.tokens.peek().is_some() {
            reader.segment(&mut line)?;
            if let Some((_, span)) = reader.tokens.next_if(|(token, _)| *token == Token::Slash)
                && reader.tokens.peek().is_none()
            {
                return Err(SpecFault::Empty.at(span));
            }
        }
        Ok(line)
    }

    fn word(&mut self) -> Option<(&'a str, TextSpan)> {
        let (token, span) = self.tokens.next_if(|(token, _)| matches!(token, Token::Word(_)))?;
        let Token::Word(word) = token else { return None };
        Some((word, span))
    }

    fn next_word(&mut self) -> Option<&'a str> {
        match self.tokens.peek() {
            Some((Token::Word(word), _)) => Some(word),
            _ => None,
        }
    }

    /// Returns the current position.
    fn position(&mut self) -> TextSpan {
        self.tokens.peek().map_or(self.end..self.end, |(_, span)| span.clone())
    }

    /// Parses the text between two slashes: a header or the payload.
    fn segment(&mut self, line: &mut FrameSpec) -> Result<(), LocatedFault> {
        let is_payload = match self.tokens.peek() {
            Some((Token::Text(_), _)) => true,
            Some((Token::Word(word), _)) => PAYLOAD.contains(word),
            _ => return Err(SpecFault::Empty.at(self.position())),
        };
        if is_payload && line.payload.is_none() {
            line.payload = Some(self.payload()?);
            return Ok(());
        }
        if line.payload.is_some() {
            return Err(SpecFault::AfterPayload.at(self.position()));
        }
        if line.layers.len() == HEADERS_MAX {
            return Err(SpecFault::TooMany(HEADERS_MAX).at(self.position()));
        }
        let layer = self.layer()?;
        line.layers.push(layer);
        Ok(())
    }

    fn layer(&mut self) -> Result<SpecHeader, LocatedFault> {
        let here = self.position();
        let (word, span) = self.word().ok_or_else(|| SpecFault::Empty.at(here))?;
        let header = HeaderSpec::find(word).ok_or_else(|| {
            let nearest = nearest(word, HEADERS.iter().map(|header| header.keyword).chain(PAYLOAD.iter().copied()));
            SpecFault::NoHeader { word: word.to_owned(), nearest }.at(span.clone())
        })?;
        let mut layer = SpecHeader { header, span, fields: Vec::new(), options: Vec::new() };
        let is_name = |word: &str| header.field(word).is_none() && header.names.iter().any(|name| name.keyword == word);
        while self.next_word().is_some_and(is_name) {
            self.keyword_item(&mut layer)?;
        }
        self.positional_values(&mut layer)?;
        loop {
            match self.tokens.peek() {
                None | Some((Token::Slash, _)) => break,
                Some((Token::Word(_), _)) => self.keyword_item(&mut layer)?,
                Some((Token::To, span)) => return Err(SpecFault::NoPair { header: header.keyword }.at(span.clone())),
                Some((Token::Text(_), span)) => {
                    let word = "\"…\"".to_owned();
                    return Err(SpecFault::NoField { header: header.keyword, word, nearest: None }.at(span.clone()));
                }
            }
        }
        let room = options_max(header);
        let given = layer.options.len();
        if given > room {
            return Err(SpecFault::Options { header: header.keyword, max: room, given }.at(layer.span));
        }
        Ok(layer)
    }

    /// Parses the values directly after the keyword of a header.
    fn positional_values(&mut self, layer: &mut SpecHeader) -> Result<(), LocatedFault> {
        let header = layer.header;
        let is_value = self.next_word().is_some_and(looks_like_a_value);
        match header.positional {
            PositionalFields::None if is_value => {
                Err(SpecFault::NoFirst { header: header.keyword }.at(self.position()))
            }
            PositionalFields::Field(field) if is_value => self.value(layer, field),
            PositionalFields::Pair(from, to) => {
                if is_value {
                    self.value(layer, from)?;
                }
                match self.tokens.next_if(|(token, _)| *token == Token::To) {
                    Some(_) => self.value(layer, to),
                    None => Ok(()),
                }
            }
            PositionalFields::None | PositionalFields::Field(_) => Ok(()),
        }
    }

    /// Parses a keyword after that of the header, and its value.
    fn keyword_item(&mut self, layer: &mut SpecHeader) -> Result<(), LocatedFault> {
        let header = layer.header;
        let here = self.position();
        let (word, span) = self.word().ok_or_else(|| SpecFault::Empty.at(here))?;
        let is_field = header.field(word).is_some();
        // A name may also be the keyword of a field: `df` alone, or `df 0`.
        if is_field && (header.names.iter().all(|name| name.keyword != word) || self.has_value()) {
            return self.value_of(layer, word, span);
        }
        if let Some(name) = header.names.iter().find(|name| name.keyword == word)
            && let Some(field) = header.field(name.field)
        {
            return set_field(layer, field, Value::constant(name.value), span);
        }
        if let Some((_, extra)) = header.options.iter().find(|(extra, _)| *extra == word) {
            return self.extra(layer, word, span, *extra);
        }
        let nearest = nearest(word, header.own_words());
        Err(SpecFault::NoField { header: header.keyword, word: word.to_owned(), nearest }.at(span))
    }

    fn has_value(&mut self) -> bool {
        self.next_word().is_some_and(looks_like_a_value)
    }

    fn value(&mut self, layer: &mut SpecHeader, field: &'static str) -> Result<(), LocatedFault> {
        let here = self.position();
        self.value_of(layer, field, here)
    }

    fn value_of(&mut self, layer: &mut SpecHeader, word: &str, at: TextSpan) -> Result<(), LocatedFault> {
        let header = layer.header;
        let field = header.field(word).ok_or_else(|| {
            SpecFault::NoField { header: header.keyword, word: word.to_owned(), nearest: None }.at(at.clone())
        })?;
        let (text, span) = self.word().ok_or_else(|| SpecFault::NoValue(word.to_owned()).at(at))?;
        let mut value = Value::read(text, field).map_err(|fault| fault.at(span.clone()))?;
        if self.next_word() == Some("each") {
            let each = self.position();
            self.tokens.next();
            if !value.is_range() {
                return Err(SpecFault::Each.at(each));
            }
            value.per = ChangePer::Frame;
        }
        set_field(layer, field, value, span)
    }

    fn extra(
        &mut self,
        layer: &mut SpecHeader,
        word: &str,
        span: TextSpan,
        extra: OptionSyntax,
    ) -> Result<(), LocatedFault> {
        match extra {
            OptionSyntax::Hex => {
                let bytes = self.hex(word, span)?;
                layer.options.extend(bytes);
            }
            OptionSyntax::Tcp(kind, lengths) => {
                layer.options.push(kind);
                // No-operation is the one option here without a length (RFC 9293 section 3.1).
                if kind != 1 {
                    let length = 2 + lengths.iter().sum::<usize>();
                    layer.options.extend(u8::try_from(length));
                }
                for length in lengths {
                    let (text, span) =
                        self.word().ok_or_else(|| SpecFault::NoValue(word.to_owned()).at(span.clone()))?;
                    let bytes = sized(text, *length).ok_or_else(|| {
                        let expected = "a number that fits";
                        SpecFault::NotValue { given: text.to_owned(), expected }.at(span)
                    })?;
                    layer.options.extend(bytes);
                }
            }
        }
        Ok(())
    }

    fn hex(&mut self, word: &str, at: TextSpan) -> Result<Vec<u8>, LocatedFault> {
        let (text, span) = self.word().ok_or_else(|| SpecFault::NoValue(word.to_owned()).at(at))?;
        let digits = text.strip_prefix("0x").unwrap_or(text);
        HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).map_err(|_| SpecFault::NotHex(text.to_owned()).at(span))
    }

    fn payload(&mut self) -> Result<Payload, LocatedFault> {
        let mut payload = Payload { bytes: Vec::new(), mark_at: None, fill: None };
        let mut is_unmarked = false;
        while let Some((token, span)) = self.tokens.next_if(|(token, _)| *token != Token::Slash) {
            let is_twice = match token {
                Token::Text(text) => {
                    payload.bytes.extend(text);
                    false
                }
                Token::Word("hex") => {
                    payload.bytes.extend(self.hex("hex", span.clone())?);
                    false
                }
                Token::Word("fill") => payload.fill.replace(PayloadFill::Byte(self.byte(span.clone())?)).is_some(),
                Token::Word("random") => payload.fill.replace(PayloadFill::Random).is_some(),
                Token::Word("mark") => is_unmarked || !payload.reserve_mark(),
                Token::Word("unmarked") => std::mem::replace(&mut is_unmarked, true) || payload.mark_at.is_some(),
                Token::Word(word) => {
                    let nearest = nearest(word, PAYLOAD.iter().copied());
                    return Err(SpecFault::NoField { header: "payload", word: word.to_owned(), nearest }.at(span));
                }
                Token::To | Token::Slash => return Err(SpecFault::NoPair { header: "payload" }.at(span)),
            };
            if is_twice {
                return Err(SpecFault::Twice("fill, random, mark or unmarked".to_owned()).at(span));
            }
        }
        if !is_unmarked {
            payload.reserve_mark();
        }
        Ok(payload)
    }

    fn byte(&mut self, at: TextSpan) -> Result<u8, LocatedFault> {
        let (text, span) = self.word().ok_or_else(|| SpecFault::NoValue("fill".to_owned()).at(at))?;
        let byte = value::parse_number(text).and_then(|value| u8::try_from(value).ok());
        byte.ok_or_else(|| SpecFault::NotValue { given: text.to_owned(), expected: "a byte, such as 0xff" }.at(span))
    }
}

/// The keywords that start a payload.
const PAYLOAD: &[&str] = &["hex", "fill", "random", "mark", "unmarked"];

impl Payload {
    /// A payload that consists of the mark only.
    pub(super) fn mark_only() -> Self {
        Self { bytes: vec![0; Mark::LENGTH], mark_at: Some(0), fill: None }
    }

    /// Makes room for the mark. Returns false if there already is one.
    fn reserve_mark(&mut self) -> bool {
        if self.mark_at.is_some() {
            return false;
        }
        // An even offset aligns its words with those of the checksum.
        self.bytes.resize(self.bytes.len().next_multiple_of(2), 0);
        self.mark_at = Some(self.bytes.len());
        self.bytes.extend([0; Mark::LENGTH]);
        true
    }
}

/// Whether a word after a header is a value and not the keyword of a field.
fn looks_like_a_value(word: &str) -> bool {
    word.contains(':') || word.starts_with(|first: char| first.is_ascii_digit() || first == '?')
}

/// The most option bytes of a header, limited by its length field.
fn options_max(header: &HeaderSpec) -> usize {
    use super::header::HeaderKind;
    match header.kind {
        HeaderKind::Ipv4 | HeaderKind::Tcp => 40,
        HeaderKind::Ipv6Options => 255 * 8 + 6,
        _ => 0,
    }
}

/// A number in `length` bytes, if it fits.
fn sized(text: &str, length: usize) -> Option<Vec<u8>> {
    let value = value::parse_number(text)?;
    let bytes = value.to_be_bytes();
    let (above, own) = bytes.split_at(bytes.len() - length);
    above.iter().all(|byte| *byte == 0).then(|| own.to_vec())
}

/// Sets a field of a header.
fn set_field(
    layer: &mut SpecHeader,
    field: &'static FieldSpec,
    value: Value,
    at: TextSpan,
) -> Result<(), LocatedFault> {
    for (other, _) in &layer.fields {
        if other.keyword == field.keyword {
            return Err(SpecFault::Twice(field.keyword.to_owned()).at(at));
        }
        if other.bit < field.bit + field.bits && field.bit < other.bit + other.bits {
            return Err(SpecFault::Overlap(other.keyword, field.keyword).at(at));
        }
    }
    let shares_a_byte = |(other, its): &&(&FieldSpec, Value)| {
        let (one, two) = (other.byte_range(), field.byte_range());
        value.is_range() && its.is_range() && one.0 < two.1 && two.0 < one.1
    };
    if let Some((other, _)) = layer.fields.iter().find(shares_a_byte) {
        return Err(SpecFault::SharedByte(other.keyword, field.keyword).at(at));
    }
    layer.fields.push((field, value));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as words: each header with its fields and options.
    fn said(text: &str) -> Vec<String> {
        let line = FrameSpec::read(text).unwrap();
        let layers = line.layers.iter().map(|layer| {
            let fields = layer.fields.iter().map(|(field, value)| {
                let each = if value.per == ChangePer::Frame { " each" } else { "" };
                let random = if value.succession == ValueSequence::Random { "?" } else { "" };
                format!(" {}={:x}*{}{random}{each}", field.keyword, value.first, value.n)
            });
            let options = HEXLOWER_PERMISSIVE.encode(&layer.options);
            format!("{}{} {options}", layer.header.keyword, fields.collect::<String>()).trim_end().to_owned()
        });
        layers.collect()
    }

    fn fault(text: &str) -> (String, SpecFault) {
        let error = FrameSpec::read(text).unwrap_err();
        (text[error.span].to_owned(), error.fault)
    }

    #[test]
    fn headers_are_read_with_what_is_special_about_them() {
        assert_eq!(said(""), [""; 0]);
        assert_eq!(
            said("eth / vlan 100 / ip 10.0.0.1-10.0.3.254 > 10.0.0.2 ttl 3 / udp 1024-65535? > 9"),
            ["eth", "vlan id=64*1", "ip src=a000001*1022 dst=a000002*1 ttl=3*1", "udp src=400*64512? dst=9*1"]
        );
        assert_eq!(said("ip id 0-65535 each df 0 mf"), ["ip id=0*65536 each df=0*1 mf=1*1"]);
        assert_eq!(
            said("tcp > 80 flags SA mss 1460 nop wscale 7 sackok"),
            ["tcp dst=50*1 flags=12*1 020405b4010303070402"]
        );
        assert_eq!(said("tcp timestamps 1 0xffffffff"), ["tcp 080a00000001ffffffff"]);
        assert_eq!(said("icmp reply code 3 / unmarked"), ["icmp type=0*1 code=3*1"]);
        assert_eq!(said("arp reply > 10.0.0.9"), ["arp op=2*1 tpa=a000009*1"]);
        assert_eq!(said("ip options 94040000"), ["ip 94040000"]);
        assert_eq!(
            said("svlan 5 prio 7/vlan 6/mpls 16 ttl 9/ip6"),
            ["svlan id=5*1 prio=7*1", "vlan id=6*1", "mpls label=10*1 ttl=9*1", "ip6"]
        );
    }

    #[test]
    fn payload_is_put_together_and_keeps_room_for_the_mark() {
        let payload = |text: &str| FrameSpec::read(text).unwrap().payload.unwrap();
        let read = payload(r#"udp / "ab" hex 0Dff"#);
        assert_eq!((&read.bytes[..4], read.bytes.len(), read.mark_at), (&b"ab\x0d\xff"[..], 22, Some(4)));
        let read = payload(r#"udp / "abc" fill 0x2a"#);
        assert_eq!((read.mark_at, read.fill), (Some(4), Some(PayloadFill::Byte(42))));
        let read = payload(r#"udp / mark "abc" random"#);
        assert_eq!((read.mark_at, read.bytes.len(), read.fill), (Some(0), 21, Some(PayloadFill::Random)));
        let read = payload(r#"udp / "abc" unmarked"#);
        assert_eq!((read.mark_at, read.bytes.len()), (None, 3));
    }

    #[test]
    fn every_fault_has_its_place() {
        let at = |text: &str| fault(text).0;
        let what = |text: &str| fault(text).1.to_string();
        assert_eq!(
            (at("eth / vlna 5"), what("eth / vlna 5")),
            ("vlna".to_owned(), "there is no header `vlna`".to_owned())
        );
        assert_eq!(FrameSpec::read("eth / vlna 5").unwrap_err().fix().unwrap(), "did you mean `vlan`?");
        assert_eq!(FrameSpec::read("ip tttl 5").unwrap_err().fix().unwrap(), "did you mean `ttl`?");
        assert!(FrameSpec::read("ip > 10.0.0.0 / 24").unwrap_err().fix().unwrap().contains("10.0.0.0/24"));
        assert_eq!((at("vlan 5000"), what("vlan 5000")), ("5000".to_owned(), "`id` is at most 4095".to_owned()));
        assert_eq!((at("ip ttl"), what("ip ttl")), ("ttl".to_owned(), "`ttl` needs a value".to_owned()));
        assert_eq!(at("ip ttl 1-9 each ttl 3"), "3");
        assert_eq!(at("ip ttl 3 each"), "each");
        assert_eq!(at("ip tos 1 dscp 2"), "2");
        assert_eq!(at("vlan 1-5 prio 0-7"), "0-7");
        assert_eq!(at("ip / \"x\" / udp"), "udp");
        assert_eq!(at("ip options 123"), "123");
        assert_eq!(at("ip / / udp"), "/");
        assert_eq!(at("ip /"), "/");
        assert_eq!(at("ip \"x\""), "\"x\"");
        assert_eq!(at("vlan 1 > 2"), ">");
        assert_eq!(at("icmp 8"), "8");
        assert_eq!(at("tcp mss 65536"), "65536");
        assert_eq!(at("udp / fill 256"), "256");
        assert_eq!(at("udp / mark mark"), "mark");
        assert_eq!(at("udp / unmarked mark"), "mark");
        assert_eq!(at("udp / fil 3"), "fil");
        assert_eq!(at("udp / \"x\" fil 3"), "fil");
        assert!(matches!(fault(&format!("ip options {}", "00".repeat(41))).1, SpecFault::Options { given: 41, .. }));
        assert!(matches!(fault(&"mpls 1 /".repeat(25)).1, SpecFault::TooMany(_)));
        assert!(matches!(fault(&" ".repeat(40_001)).1, SpecFault::TooLong(_)));
    }

    const GUIDE: &str = include_str!("../../../../../../docs/frames-language.md");

    #[test]
    fn the_guide_has_every_word_in_the_row_of_its_header() {
        for header in HEADERS {
            let word = format!("`{}`", header.keyword);
            let row = GUIDE.lines().find(|row| row.split('|').nth(1).is_some_and(|cell| cell.contains(&word)));
            let row = row.unwrap_or_else(|| panic!("{word} is not in the guide"));
            for own in header.own_words() {
                let is_there = |after: &str| row.contains(&format!("`{own}{after}`"));
                let options = [" HEX", " N", " N N", ""];
                assert!(options.into_iter().any(is_there), "{word} {own}");
            }
        }
    }
}
