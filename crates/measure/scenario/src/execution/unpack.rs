//! Decompresses bodies (RFC 9110 section 8.4.1, RFC 7932, RFC 9659).
//!
//! This module does not know what is searched in them. The output is limited, because a small body can decompress to one that
//! fills the memory.

use std::{
    borrow::Cow,
    io::{Cursor, Read},
};

use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;

use super::message::HttpMessage;

/// The longest decompressed body: as much as the engine keeps of an uncompressed answer.
const BODY_MAX: usize = 16 << 20;
/// The largest window of zstd in HTTP (RFC 9659 section 3).
const ZSTD_WINDOW_MAX: u64 = 8 << 20;
/// The read size of brotli: the length of a page.
const BROTLI_READ: usize = 4096;

/// Why a body cannot be examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Its coding is unknown, or it has more than one.
    #[error("the content-encoding of the body is not supported: set Accept-Encoding to gzip, deflate, br or zstd")]
    UnknownCoding,
    /// It does not match its coding.
    #[error("the body does not match its content-encoding")]
    Corrupt,
    /// It is a decompression bomb, or not meant to be examined.
    #[error("the body is more than 16 MiB when it is unpacked")]
    TooLarge,
    /// A path would have to visit it too often.
    #[error("the JSON path would visit more than 1,000,000 values of the body")]
    TooMuch,
}

/// Decompresses bodies; its memory is reused.
#[derive(Debug)]
pub struct Unpacker {
    /// Nearly all compressed bodies use gzip; the other codings allocate for each body.
    gzip: GzDecoder<Cursor<Vec<u8>>>,
    body: Vec<u8>,
}

impl Default for Unpacker {
    fn default() -> Self {
        Self { gzip: GzDecoder::new(Cursor::default()), body: Vec::new() }
    }
}

impl Unpacker {
    /// The decoded body of an answer.
    ///
    /// # Errors
    /// The body cannot be decoded.
    pub fn body<'a>(&'a mut self, message: HttpMessage<'a>) -> Result<&'a [u8], BodyError> {
        let mut codings = message.codings();
        let packed = message.body();
        let coding = match codings.next() {
            Some(coding) if !packed.is_empty() => coding,
            // The answer to a `HEAD` has the field, too.
            _ => return Ok(packed),
        };
        if codings.next().is_some() {
            return Err(BodyError::UnknownCoding);
        }
        self.decoded(coding, packed)
    }

    /// A body decoded from one coding.
    ///
    /// # Errors
    /// The coding is unknown, or the body cannot be decoded.
    pub fn decoded(&mut self, coding: &[u8], packed: &[u8]) -> Result<&[u8], BodyError> {
        let body = &mut self.body;
        body.clear();
        match coding.to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => {
                let mut input = self.gzip.reset(Cursor::default()).into_inner();
                input.clear();
                input.extend_from_slice(packed);
                self.gzip.reset(Cursor::new(input));
                read_bounded(&mut self.gzip, body)?;
            }
            b"deflate" if is_zlib(packed) => read_bounded(ZlibDecoder::new(packed), body)?,
            // Some servers omit the zlib frame, and browsers accept it.
            b"deflate" => read_bounded(DeflateDecoder::new(packed), body)?,
            b"br" => read_bounded(brotli_decompressor::Decompressor::new(packed, BROTLI_READ), body)?,
            b"zstd" => {
                let decoder = StreamingDecoder::new_with_max_window_size(packed, ZSTD_WINDOW_MAX);
                read_bounded(decoder.map_err(|_| BodyError::Corrupt)?, body)?;
            }
            _ => return Err(BodyError::UnknownCoding),
        }
        Ok(body)
    }

    /// An answer in readable form: the head, and the decoded body if it can be decoded.
    pub(crate) fn readable<'a>(&mut self, answer: &'a [u8], scratch: &mut Vec<u8>) -> Cow<'a, [u8]> {
        let message = HttpMessage::read(answer, scratch);
        if message.codings().next().is_none() {
            return Cow::Borrowed(answer);
        }
        match self.body(message) {
            Ok(body) => Cow::Owned([message.head(), body].concat()),
            Err(_) => Cow::Borrowed(answer),
        }
    }
}

/// Reads everything, up to the limit.
fn read_bounded(reader: impl Read, body: &mut Vec<u8>) -> Result<(), BodyError> {
    let n_read = reader.take(BODY_MAX as u64 + 1).read_to_end(body).map_err(|_| BodyError::Corrupt)?;
    if n_read > BODY_MAX { Err(BodyError::TooLarge) } else { Ok(()) }
}

/// Whether the data begins like a zlib stream (RFC 1950 section 2.2).
fn is_zlib(packed: &[u8]) -> bool {
    matches!(packed, [method, flags, ..] if method & 15 == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{
        Compression,
        write::{DeflateEncoder, GzEncoder, ZlibEncoder},
    };

    use super::*;

    const TEXT: &[u8] = b"hello, hello, hello";
    /// [`TEXT`] as the tool `brotli` compresses it.
    const BROTLI: &[u8] = &[
        0x1b, 0x12, 0x00, 0xf8, 0x8d, 0x94, 0x6e, 0xde, 0x44, 0x09, 0x52, 0x86, 0x96, 0x6c, 0x2c, 0x6f, 0x11, 0x4f,
        0x24, 0xd0, 0x71, 0x00,
    ];
    /// [`TEXT`] as the tool `zstd` compresses it.
    const ZSTD: &[u8] = &[
        0x28, 0xb5, 0x2f, 0xfd, 0x24, 0x13, 0x6d, 0x00, 0x00, 0x38, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x2c, 0x20, 0x01,
        0x00, 0xe2, 0x8a, 0x11, 0x75, 0xf3, 0x98, 0x8e,
    ];

    fn answer(codings: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\nContent-Encoding: {codings}\r\n\r\n").as_bytes(), body].concat()
    }

    fn unpacked(unpacker: &mut Unpacker, codings: &str, body: &[u8]) -> Result<Vec<u8>, BodyError> {
        let (answer, mut scratch) = (answer(codings, body), Vec::new());
        unpacker.body(HttpMessage::read(&answer, &mut scratch)).map(<[u8]>::to_vec)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn bodies_are_unpacked_in_every_way_that_browsers_know() {
        let mut unpacker = Unpacker::default();
        let ways: [(&str, Vec<u8>); 8] = [
            ("gzip", gzip(TEXT)),
            ("X-Gzip", gzip(TEXT)),
            ("deflate", zlib(TEXT)),
            ("deflate", deflate(TEXT)),
            ("br", BROTLI.to_vec()),
            ("zstd", ZSTD.to_vec()),
            ("identity, GZIP", gzip(TEXT)),
            ("identity", TEXT.to_vec()),
        ];
        for _ in 0..2 {
            for (coding, packed) in &ways {
                assert_eq!(unpacked(&mut unpacker, coding, packed).as_deref(), Ok(TEXT), "{coding}");
            }
        }
    }

    #[test]
    fn what_is_not_as_it_says_is_told_and_does_no_harm_to_the_next() {
        let mut unpacker = Unpacker::default();
        let whole = gzip(TEXT);
        for coding in ["gzip", "deflate", "br", "zstd"] {
            assert_eq!(unpacked(&mut unpacker, coding, b"\xff<html>"), Err(BodyError::Corrupt), "{coding}");
            assert_eq!(unpacked(&mut unpacker, coding, b""), Ok(Vec::new()), "the answer to a HEAD, {coding}");
        }
        for (coding, packed) in [("gzip", &whole[..]), ("deflate", &zlib(TEXT)), ("br", BROTLI), ("zstd", ZSTD)] {
            let cut = &packed[..packed.len() - 5];
            assert_eq!(unpacked(&mut unpacker, coding, cut), Err(BodyError::Corrupt), "{coding}, cut off");
        }
        for coding in ["compress", "gzip, br", "gzip\r\nContent-Encoding: br", "dcb"] {
            assert_eq!(unpacked(&mut unpacker, coding, &whole), Err(BodyError::UnknownCoding), "{coding}");
        }
        assert_eq!(unpacked(&mut unpacker, "gzip", &whole).as_deref(), Ok(TEXT));
    }

    #[test]
    fn a_bomb_takes_no_more_memory_than_an_answer_may() {
        let mut unpacker = Unpacker::default();
        let bomb = gzip(&vec![0; 4 * BODY_MAX]);
        assert!(bomb.len() < BODY_MAX / 200, "{}", bomb.len());
        assert_eq!(unpacked(&mut unpacker, "gzip", &bomb), Err(BodyError::TooLarge));
        assert!(unpacker.body.capacity() <= 2 * BODY_MAX, "{}", unpacker.body.capacity());
        assert_eq!(unpacked(&mut unpacker, "gzip", &gzip(&vec![1; BODY_MAX])).map(|body| body.len()), Ok(BODY_MAX));
        // A frame that asks for a window of 128 MiB, with one block of one byte repeated 128 Ki times.
        let window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x03, 0x00, 0x10, b'x'];
        assert_eq!(unpacked(&mut unpacker, "zstd", &window), Err(BodyError::Corrupt));
    }

    #[test]
    fn people_are_shown_what_was_meant() {
        let mut unpacker = Unpacker::default();
        let (packed, plain) = (answer("gzip", &gzip(TEXT)), answer("identity", TEXT));
        let mut shown = |answer: &[u8]| unpacker.readable(answer, &mut Vec::new()).into_owned();
        assert_eq!(shown(&packed), answer("gzip", TEXT));
        assert_eq!(shown(&plain), plain);
        assert_eq!(shown(&answer("gzip", TEXT)), answer("gzip", TEXT), "as it came when nothing else can be had");
    }
}
