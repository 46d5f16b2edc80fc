//! What is sent behind the head of a request.

use std::fmt::Write as _;

use fathom_model::units::Bytes;

use super::{CompileError, Compiler};
use crate::scenario::{
    tree::{self, Content, Field, FieldValue},
    walk::text::{Filter, Piece, Text},
};

/// The longest file that a request carries: each user may have it in memory.
const FILE_MAX: Bytes = Bytes(256 << 20);

/// A body with what it is.
pub(super) struct Body {
    pub(super) text: Text,
    pub(super) media_type: Option<String>,
}

impl Compiler<'_> {
    pub(super) fn body(&mut self, body: &tree::Body) -> Result<Body, CompileError> {
        Ok(match &body.content {
            Content::Text(template) => Body { text: self.plain(template)?, media_type: None },
            Content::Json(template) => {
                Body { text: self.plain(&template.escaped_json())?, media_type: Some("application/json".to_owned()) }
            }
            Content::File(path) => {
                let bytes = self.file(&path.text)?;
                Body { text: Text(vec![Piece::Literal(bytes.into())]), media_type: None }
            }
            Content::Form(fields) => {
                Body { text: self.form(fields)?, media_type: Some("application/x-www-form-urlencoded".to_owned()) }
            }
            Content::Multipart(fields) => self.multipart(fields)?,
        })
    }

    fn file(&self, path: &str) -> Result<Vec<u8>, CompileError> {
        let path = self.site.folder.join(path);
        self.site.policy.read(&path, FILE_MAX).map_err(|cause| CompileError::File { path, cause })
    }

    /// Names and values as browsers encode them: a blank is a plus.
    fn form(&mut self, fields: &[Field]) -> Result<Text, CompileError> {
        let mut text = Text::default();
        for (idx, field) in fields.iter().enumerate() {
            if idx > 0 {
                text.push_filtered(b"&", &[]);
            }
            text.push_filtered(field.name.text.as_bytes(), &[Filter::Form]);
            text.push_filtered(b"=", &[]);
            if let FieldValue::Text(value) = &field.value {
                let value = self.text(value, Some(Filter::Form))?;
                text.append(value);
            }
        }
        Ok(text)
    }

    /// Parts between boundaries (RFC 7578).
    fn multipart(&mut self, fields: &[Field]) -> Result<Body, CompileError> {
        let mut parts = Vec::new();
        for field in fields {
            let mut head = format!("Content-Disposition: form-data; name=\"{}\"", escaped(&field.name.text));
            let content = match &field.value {
                FieldValue::Text(value) => self.plain(value)?,
                FieldValue::File { path, media_type } => {
                    let name = path.text.rsplit('/').next().unwrap_or_default();
                    let media_type = media_type.as_ref().map_or("application/octet-stream", |name| &name.text);
                    // Writing to a string cannot fail.
                    let _ = write!(head, "; filename=\"{}\"\r\nContent-Type: {media_type}", escaped(name));
                    Text(vec![Piece::Literal(self.file(&path.text)?.into())])
                }
            };
            parts.push((head, content));
        }
        let boundary = boundary(&parts);
        let mut text = Text::default();
        for (head, content) in parts {
            text.push_filtered(format!("--{boundary}\r\n{head}\r\n\r\n").as_bytes(), &[]);
            text.append(content);
            text.push_filtered(b"\r\n", &[]);
        }
        text.push_filtered(format!("--{boundary}--\r\n").as_bytes(), &[]);
        Ok(Body { text, media_type: Some(format!("multipart/form-data; boundary={boundary}")) })
    }
}

/// As names stand in quotes there (RFC 7578 section 2, and what browsers do).
fn escaped(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

/// A line that is in none of the parts, as far as they are known before the run.
fn boundary(parts: &[(String, Text)]) -> String {
    let is_in = |candidate: &str| {
        parts.iter().flat_map(|(_, content)| &content.0).any(|piece| match piece {
            Piece::Literal(bytes) => memchr::memmem::find(bytes, candidate.as_bytes()).is_some(),
            Piece::Value(_) => false,
        })
    };
    let candidates =
        (0u64..).map(|n| format!("fathom-{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5f61_7468_6f6d_2d2d));
    candidates.into_iter().find(|candidate| !is_in(candidate)).unwrap_or_default()
}
