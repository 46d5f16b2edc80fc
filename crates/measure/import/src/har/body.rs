//! Bodies of recorded requests.

use data_encoding::BASE64;

use super::{
    super::{
        encode::{FORM_MEDIA_TYPE, form, unform},
        import_tree::{FormPart, FormPartContent, ImportNote, ImportText, ImportedBody},
    },
    archive::{HarRequest, Param},
};

/// The body of a request: the text as sent if it was recorded, otherwise the recorded parameters.
pub(super) fn body(asked: &HarRequest) -> (ImportedBody, Vec<ImportNote>) {
    let note = |what: &str| vec![ImportNote { location: String::new(), what: what.to_owned() }];
    let Some(data) = &asked.post_data else {
        let header = |name: &str| asked.headers.iter().find(|pair| pair.name.eq_ignore_ascii_case(name));
        let is_long = header("content-length").is_some_and(|pair| pair.value.trim() != "0");
        // Browsers do not record files, and then omit the whole body.
        let is_form = header("content-type").is_some_and(|pair| pair.value.starts_with("multipart/"));
        let is_lost = asked.body_size > 0 || is_long || is_form;
        return (
            ImportedBody::None,
            if is_lost { note("its body was not recorded: it is sent without one") } else { Vec::new() },
        );
    };
    let multipart = data.mime_type.to_ascii_lowercase().starts_with("multipart/form-data");
    if let Some(text) = data.text.as_deref().filter(|text| !text.is_empty()) {
        if data.encoding.as_deref() == Some("base64") {
            return match BASE64.decode(text.trim().as_bytes()) {
                Ok(bytes) => body_of_bytes(bytes, &data.mime_type),
                Err(_) => (ImportedBody::None, note("the body is not valid base64: left out")),
            };
        }
        if multipart {
            return match parts_of(text, &data.mime_type) {
                Some(parts) => files_of(parts),
                None => (ImportedBody::Text(ImportText::literal(text)), Vec::new()),
            };
        }
        let fields = if data.mime_type.starts_with(FORM_MEDIA_TYPE) { fields_of(text) } else { None };
        let text = || ImportedBody::Text(ImportText::literal(text));
        return (fields.map_or_else(text, ImportedBody::Form), Vec::new());
    }
    if data.params.is_empty() {
        return (ImportedBody::None, Vec::new());
    }
    if multipart {
        return files_of(data.params.iter().map(part_of).collect());
    }
    // The names and values of a HAR are decoded; some tools leave them encoded.
    let fields = data.params.iter().map(|param| (param.name.as_str(), param.value.as_deref().unwrap_or_default()));
    (
        ImportedBody::Form(
            fields.map(|(name, value)| (ImportText::literal(name), ImportText::literal(value))).collect(),
        ),
        Vec::new(),
    )
}

/// A body that is not text as a whole; the parts of a form mostly are, and the others are files.
fn body_of_bytes(bytes: Vec<u8>, media_type: &str) -> (ImportedBody, Vec<ImportNote>) {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return (ImportedBody::Text(ImportText::literal(text)), Vec::new()),
        Err(error) => error.into_bytes(),
    };
    let mut parts = parts_of(&String::from_utf8_lossy(&bytes), media_type);
    for part in parts.iter_mut().flatten().filter(|part| part.file_name.is_some()) {
        // The note on it tells where the file is expected.
        part.content = FormPartContent::Text(ImportText::default());
    }
    parts.map_or((ImportedBody::Bytes(bytes), Vec::new()), files_of)
}

/// The fields of a form as people read them, if their encoding results in the same bytes.
fn fields_of(text: &str) -> Option<Vec<(ImportText, ImportText)>> {
    let field = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let [name_here, value_here] = [name, value].map(|part| unform(ImportText::literal(part)));
        let is_same = form(name_here.clone()).to_string() == name && form(value_here.clone()).to_string() == value;
        (is_same && !name.is_empty()).then_some((name_here, value_here))
    };
    text.split('&').map(field).collect()
}

fn part_of(param: &Param) -> FormPart {
    let value = ImportText::literal(param.value.clone().unwrap_or_default());
    FormPart {
        name: ImportText::literal(&*param.name),
        content: FormPartContent::Text(value),
        media_type: param.content_type.clone().filter(|media| !media.is_empty()),
        file_name: param.file_name.clone().filter(|name| !name.is_empty()).map(ImportText::literal),
    }
}

/// Notes which parts were files, because browsers do not record their content.
fn files_of(mut parts: Vec<FormPart>) -> (ImportedBody, Vec<ImportNote>) {
    let mut notes = Vec::new();
    for part in &mut parts {
        if let Some(file) = part.file_name.clone()
            && matches!(&part.content, FormPartContent::Text(text) if text.is_empty())
        {
            notes.push(ImportNote {
                location: String::new(),
                what: format!("the content of the file {file} is not recorded: put the file next to the scenario"),
            });
            part.content = FormPartContent::File(file);
        }
    }
    (ImportedBody::Multipart(parts), notes)
}

/// Splits a body of `multipart/form-data` into parts (RFC 7578).
fn parts_of(text: &str, media_type: &str) -> Option<Vec<FormPart>> {
    let boundary = media_type.split(';').find_map(|piece| piece.trim().strip_prefix("boundary="))?.trim_matches('"');
    let delimiter = format!("--{boundary}");
    let mut pieces = text.split(delimiter.as_str());
    pieces.next().filter(|before| before.is_empty())?;
    let mut parts = Vec::new();
    for piece in pieces {
        if piece.starts_with("--") {
            return Some(parts);
        }
        let (head, content) = piece.strip_prefix("\r\n")?.split_once("\r\n\r\n")?;
        let content = content.strip_suffix("\r\n")?;
        parts.push(part_with(head, content)?);
    }
    None
}

fn part_with(head: &str, content: &str) -> Option<FormPart> {
    let (mut disposition, mut media_type) = (None, None);
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" => disposition = Some(value.trim()),
            "content-type" => media_type = Some(value.trim().to_owned()),
            // Another header would be lost, so the body is better kept unchanged.
            _ => return None,
        }
    }
    let quoted = |key: &str| {
        let (_, rest) = disposition?.split_once(&format!(" {key}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    };
    Some(FormPart {
        name: ImportText::literal(quoted("name")?),
        content: FormPartContent::Text(ImportText::literal(content)),
        media_type,
        file_name: quoted("filename").map(ImportText::literal),
    })
}
