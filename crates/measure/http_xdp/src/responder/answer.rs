//! The one answer that a responder gives to every request.

use fathom_engine::Error;
use fathom_http::responder::KeepAliveLimit;
use fathom_model::units::Bytes;

/// What becomes of a connection after an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AfterAnswer {
    /// It stays open for the next request.
    #[default]
    KeepsOpen,
    /// The responder closes it: the answer says so, and carries a FIN.
    Closes,
}

impl TryFrom<KeepAliveLimit> for AfterAnswer {
    type Error = Error;

    /// A responder that keeps nothing of a connection counts no answers.
    fn try_from(limit: KeepAliveLimit) -> Result<Self, Error> {
        match limit {
            KeepAliveLimit::On => Ok(Self::KeepsOpen),
            KeepAliveLimit::Answers(1) => Ok(Self::Closes),
            KeepAliveLimit::Answers(n) => Err(Error::Unsupported {
                what: format!("an XDP responder counts no answers of a connection, so it cannot close one after {n}"),
                hint: Some("choose keep-alive on or off".to_owned()),
            }),
        }
    }
}

/// A constant answer of HTTP/1.1 with status 200 and Content-Length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    bytes: Vec<u8>,
    /// What follows it.
    pub after: AfterAnswer,
}

impl Answer {
    /// An answer with a body of this size; `None` if no segment holds it.
    #[must_use]
    pub fn new(size: Bytes, after: AfterAnswer) -> Option<Self> {
        let n_body = usize::from(u16::try_from(size.0).ok()?);
        let closing = match after {
            AfterAnswer::KeepsOpen => "",
            AfterAnswer::Closes => "Connection: close\r\n",
        };
        let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {n_body}\r\n{closing}\r\n").into_bytes();
        bytes.resize(bytes.len() + n_body, b'x');
        Some(Self { bytes, after })
    }

    /// Its head and its body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
