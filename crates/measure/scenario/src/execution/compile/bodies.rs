//! Compiles the bodies of requests.

use std::fmt::Write as _;

use fathom_model::units::Bytes;

use super::{CompileError, Compiler};
use crate::{
    ast::{self, BodyContent, FormField, FormFieldValue},
    execution::text::{CompiledText, Filter, TextPiece},
};

/// The longest file that a request carries: each user may have it in memory.
const FILE_MAX: Bytes = Bytes(256 << 20);

/// A body with its content type.
pub(super) struct CompiledBody {
    pub(super) text: CompiledText,
    pub(super) media_type: Option<String>,
}

impl Compiler<'_> {
    pub(super) fn body(&mut self, body: &ast::BodyDef) -> Result<CompiledBody, CompileError> {
        Ok(match &body.content {
            BodyContent::Text(template) => CompiledBody { text: self.plain(template)?, media_type: None },
            BodyContent::Json(template) => CompiledBody {
                text: self.plain(&template.escaped_json())?,
                media_type: Some("application/json".to_owned()),
            },
            BodyContent::File(path) => {
                let bytes = self.file(&path.text)?;
                CompiledBody { text: CompiledText(vec![TextPiece::Literal(bytes.into())]), media_type: None }
            }
            BodyContent::Form(fields) => CompiledBody {
                text: self.form(fields)?,
                media_type: Some("application/x-www-form-urlencoded".to_owned()),
            },
            BodyContent::Multipart(fields) => self.multipart(fields)?,
        })
    }

    fn file(&self, path: &str) -> Result<Vec<u8>, CompileError> {
        let path = self.context.folder.join(path);
        self.context.policy.read(&path, FILE_MAX).map_err(|cause| CompileError::File { path, cause })
    }

    /// Encodes names and values like browsers: a blank becomes a plus.
    fn form(&mut self, fields: &[FormField]) -> Result<CompiledText, CompileError> {
        let mut text = CompiledText::default();
        for (idx, field) in fields.iter().enumerate() {
            if idx > 0 {
                text.push_filtered(b"&", &[]);
            }
            text.push_filtered(field.name.text.as_bytes(), &[Filter::Form]);
            text.push_filtered(b"=", &[]);
            if let FormFieldValue::Text(value) = &field.value {
                let value = self.text(value, Some(Filter::Form))?;
                text.append(value);
            }
        }
        Ok(text)
    }

    /// Parts between boundaries (RFC 7578).
    fn multipart(&mut self, fields: &[FormField]) -> Result<CompiledBody, CompileError> {
        let mut parts = Vec::new();
        for field in fields {
            let mut head = format!("Content-Disposition: form-data; name=\"{}\"", escaped(&field.name.text));
            let content = match &field.value {
                FormFieldValue::Text(value) => self.plain(value)?,
                FormFieldValue::File { path, media_type } => {
                    let name = path.text.rsplit('/').next().unwrap_or_default();
                    let media_type = media_type.as_ref().map_or("application/octet-stream", |name| &name.text);
                    // Writing to a string cannot fail.
                    let _ = write!(head, "; filename=\"{}\"\r\nContent-Type: {media_type}", escaped(name));
                    CompiledText(vec![TextPiece::Literal(self.file(&path.text)?.into())])
                }
            };
            parts.push((head, content));
        }
        let boundary = boundary(&parts);
        let mut text = CompiledText::default();
        for (head, content) in parts {
            text.push_filtered(format!("--{boundary}\r\n{head}\r\n\r\n").as_bytes(), &[]);
            text.append(content);
            text.push_filtered(b"\r\n", &[]);
        }
        text.push_filtered(format!("--{boundary}--\r\n").as_bytes(), &[]);
        Ok(CompiledBody { text, media_type: Some(format!("multipart/form-data; boundary={boundary}")) })
    }
}

/// Escapes a name for the quotes there (RFC 7578 section 2, and the practice of browsers).
fn escaped(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

/// A line that occurs in none of the parts, as far as they are known before the run.
fn boundary(parts: &[(String, CompiledText)]) -> String {
    let is_in = |candidate: &str| {
        parts.iter().flat_map(|(_, content)| &content.0).any(|piece| match piece {
            TextPiece::Literal(bytes) => memchr::memmem::find(bytes, candidate.as_bytes()).is_some(),
            TextPiece::Value(_) => false,
        })
    };
    let candidates =
        (0u64..).map(|n| format!("fathom-{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5f61_7468_6f6d_2d2d));
    candidates.into_iter().find(|candidate| !is_in(candidate)).unwrap_or_default()
}
