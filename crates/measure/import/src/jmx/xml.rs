//! XML as JMeter writes it, as a tree: limited in depth, and with the predefined entities of XML only.
//!
//! Knows nothing of test plans.

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesRef, BytesStart, Event},
};

use super::super::Error;

/// Plans have two XML levels per controller; thirty nested controllers would already be hard to read.
const DEPTH_MAX: usize = 200;

/// An element with its content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct XmlNode {
    pub(super) tag: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<XmlNode>,
    pub(super) text: String,
}

impl XmlNode {
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Reads a document and returns its outermost element.
pub(super) fn read(text: &str) -> Result<XmlNode, Error> {
    let mut reader = Reader::from_str(text);
    let mut open = vec![XmlNode::default()];
    loop {
        let wrong = |what: String, reader: &Reader<&[u8]>| wrong_at(text, reader, what);
        let event = reader.read_event().map_err(|error| wrong(error.to_string(), &reader))?;
        let at = |what: &str| wrong(what.to_owned(), &reader);
        let innermost = open.last_mut().ok_or_else(|| at("an element ends that never began"))?;
        match event {
            Event::Start(start) => {
                if open.len() > DEPTH_MAX {
                    return Err(at("elements are nested more than 200 deep"));
                }
                open.push(node(&start).map_err(|what| wrong(what, &reader))?);
            }
            Event::Empty(start) => innermost.children.push(node(&start).map_err(|what| wrong(what, &reader))?),
            Event::End(_) => {
                let node = open.pop().ok_or_else(|| at("an element ends that never began"))?;
                open.last_mut().ok_or_else(|| at("an element ends that never began"))?.children.push(node);
            }
            Event::Text(text) => innermost.text.push_str(&text.xml_content(XmlVersion::Explicit1_0)),
            Event::CData(text) => innermost.text.push_str(&text.xml_content(XmlVersion::Explicit1_0)),
            Event::GeneralRef(reference) => {
                innermost.text.push_str(&resolved(&reference).map_err(|what| wrong(what, &reader))?);
            }
            Event::DocType(_) => {
                return Err(at("it declares a document type, which may define entities: that is refused"));
            }
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    let end = |what: &str| wrong_at(text, &reader, what.to_owned());
    match <[XmlNode; 1]>::try_from(open) {
        Ok([mut document]) if document.children.len() == 1 => Ok(document.children.remove(0)),
        Ok(_) => Err(end("there must be one outermost element")),
        Err(_) => Err(end("it ends before its elements do")),
    }
}

fn wrong_at(text: &str, reader: &Reader<&[u8]>, what: String) -> Error {
    let at = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX).min(text.len());
    Error::Xml { what, line: 1 + memchr::memchr_iter(b'\n', &text.as_bytes()[..at]).count() }
}

fn node(start: &BytesStart<'_>) -> Result<XmlNode, String> {
    let tag = start.name().as_ref().to_owned();
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let key = attribute.key.as_ref().to_owned();
        let value =
            attribute.normalized_value(XmlVersion::Explicit1_0).map_err(|error| error.to_string())?.into_owned();
        attributes.push((key, value));
    }
    Ok(XmlNode { tag, attributes, ..XmlNode::default() })
}

/// The text of a reference: a character by its number, or one of the five entities of XML.
fn resolved(reference: &BytesRef<'_>) -> Result<String, String> {
    if let Some(char) = reference.resolve_char_ref().map_err(|error| error.to_string())? {
        return Ok(char.to_string());
    }
    let name: &str = reference;
    match quick_xml::escape::resolve_predefined_entity(name) {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("the entity &{name}; is not one of XML")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_their_attributes_texts_and_children() {
        let root =
            read("<?xml version=\"1.0\"?><!-- x --><a b=\"1 &amp; 2\">&lt;x&#10;<c/>y<![CDATA[<z>]]></a>").unwrap();
        assert_eq!((root.tag.as_str(), root.attribute("b"), root.text.as_str()), ("a", Some("1 & 2"), "<x\ny<z>"));
        assert_eq!(root.children[0].tag, "c");
    }

    #[test]
    fn entities_and_document_types_are_refused() {
        let bomb = "<?xml version=\"1.0\"?>\n<!DOCTYPE a [<!ENTITY b \"bbbb\"><!ENTITY c \"&b;&b;\">]>\n<a>&c;</a>";
        for text in [bomb, "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>", "<a>&b;</a>", "<a b=\"&c;\"/>"] {
            assert!(matches!(read(text), Err(Error::Xml { .. })), "{text}");
        }
        assert!(read(bomb).unwrap_err().to_string().contains("document type"));
    }

    #[test]
    fn what_is_not_whole_or_too_deep_is_an_error_with_its_line() {
        for text in ["", "<a>", "<a></b>", "</a>", "<a/><b/>", "x", "<a b=1/>", &"<a>".repeat(100_000)] {
            assert!(read(text).is_err(), "{text:.20}");
        }
        assert!(matches!(read("<a>\n\n</b>"), Err(Error::Xml { line: 3, .. })));
    }
}
