//! Divides what one side sends into frames (RFC 9113 section 4.1).

use fathom_model::units::Nanos;

/// The length, type, flags and stream of a frame.
const HEADER: usize = 9;
/// The longest frame that is put together; those with data are not, so that they may have any length.
const FRAME_MAX: usize = 128 << 10;

/// The types of frames that matter here (RFC 9113 section 6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const CONTINUATION: u8 = 9;
/// Their flags.
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The bytes are not as RFC 9113 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// A stream of a connection.
pub(super) type StreamId = u32;

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FramePart<'a> {
    /// A whole frame other than DATA.
    Whole(Frame),
    /// A part of a DATA frame.
    Data(DataPart<'a>),
}

/// A frame with its payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: StreamId,
    bytes: Vec<u8>,
}

/// Content of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DataPart<'a> {
    pub(super) stream: StreamId,
    pub(super) content: &'a [u8],
    /// The bytes that were sent for it, with header and padding.
    pub(super) n_sent: usize,
    /// Whether its side of the stream ends with it.
    pub(super) ends_stream: bool,
}

impl Frame {
    /// The bytes that were sent for it.
    pub(super) fn n_sent(&self) -> usize {
        self.bytes.len()
    }

    /// The part of a field section in it, without padding, priority and the number of a promised stream.
    ///
    /// # Errors
    /// It is shorter than these.
    pub(super) fn field_block(&self) -> Result<&[u8], Malformed> {
        let payload = &self.bytes[HEADER..];
        if self.kind == CONTINUATION {
            return Ok(payload);
        }
        let has_priority = self.kind == HEADERS && self.flags & PRIORITY != 0;
        let n_numbers = if has_priority { 5 } else { 0 } + if self.kind == PUSH_PROMISE { 4 } else { 0 };
        let (n_padding, rest) = match payload {
            payload if self.flags & PADDED == 0 => (0, payload),
            [n_padding, rest @ ..] => (usize::from(*n_padding), rest),
            [] => return Err(Malformed),
        };
        let end = rest.len().checked_sub(n_padding).ok_or(Malformed)?;
        rest.get(n_numbers..end).ok_or(Malformed)
    }
}

/// A DATA frame whose header has come.
#[derive(Debug, Clone, Copy)]
struct BegunData {
    stream: StreamId,
    ends_stream: bool,
    n_content: usize,
    n_padding: usize,
}

/// The header of a DATA frame (RFC 9113 section 4.1), of any length.
struct DataHeader {
    length: usize,
    flags: u8,
    stream: StreamId,
}

/// Follows the frames of one side.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    begun: Vec<u8>,
    data: Option<BegunData>,
    /// The time of the first byte of the frame that was read last.
    first_byte: Nanos,
}

impl FrameReader {
    /// The time of the first byte of the frame that was read last.
    pub(super) const fn first_byte(&self) -> Nanos {
        self.first_byte
    }

    /// The bytes of a frame that is not whole.
    pub(super) fn partial(&self) -> &[u8] {
        &self.begun
    }

    /// The stream of a HEADERS frame that is not whole, if its header is.
    pub(super) fn partial_headers(&self) -> Option<StreamId> {
        let [_, _, _, kind, _, stream @ ..] = self.begun.first_chunk::<HEADER>()?;
        (*kind == HEADERS).then(|| u32::from_be_bytes(*stream) & (u32::MAX >> 1))
    }

    /// Takes bytes up to the end of the next part. Returns the part if it is whole.
    ///
    /// # Errors
    /// A frame is too long, or its padding is longer than itself.
    pub(super) fn read<'a>(&mut self, bytes: &mut &'a [u8], time: Nanos) -> Result<Option<FramePart<'a>>, Malformed> {
        if self.data.is_some() {
            return Ok(self.read_data(bytes).map(FramePart::Data));
        }
        if self.begun.is_empty() {
            self.first_byte = time;
        }
        self.fill(bytes, HEADER);
        let Some(&[l0, l1, l2, kind, flags, s0, s1, s2, s3]) = self.begun.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = usize::from(l0) << 16 | usize::from(l1) << 8 | usize::from(l2);
        // The highest bit is reserved.
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        if kind == DATA {
            return self.begin_data(bytes, DataHeader { length, flags, stream });
        }
        if length > FRAME_MAX {
            return Err(Malformed);
        }
        self.fill(bytes, HEADER + length);
        if self.begun.len() < HEADER + length {
            return Ok(None);
        }
        Ok(Some(FramePart::Whole(Frame { kind, flags, stream, bytes: std::mem::take(&mut self.begun) })))
    }

    fn begin_data<'a>(
        &mut self,
        bytes: &mut &'a [u8],
        DataHeader { length, flags, stream }: DataHeader,
    ) -> Result<Option<FramePart<'a>>, Malformed> {
        let n_length = usize::from(flags & PADDED != 0);
        self.fill(bytes, HEADER + n_length);
        let n_padding = match self.begun.get(HEADER..HEADER + n_length) {
            Some([n_padding]) => usize::from(*n_padding),
            Some(_) => 0,
            None => return Ok(None),
        };
        let n_content = length.checked_sub(n_length + n_padding).ok_or(Malformed)?;
        let ends_stream = flags & END_STREAM != 0;
        let n_sent = self.begun.len();
        self.begun.clear();
        let is_over = n_content + n_padding == 0;
        self.data = (!is_over).then_some(BegunData { stream, ends_stream, n_content, n_padding });
        let part = DataPart { stream, content: &[], n_sent, ends_stream: ends_stream && is_over };
        Ok(Some(FramePart::Data(part)))
    }

    fn read_data<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<DataPart<'a>> {
        let data = self.data.as_mut().filter(|_| !bytes.is_empty())?;
        let (content, rest) = bytes.split_at(data.n_content.min(bytes.len()));
        let n_padding = data.n_padding.min(rest.len());
        *bytes = &rest[n_padding..];
        data.n_content -= content.len();
        data.n_padding -= n_padding;
        let BegunData { stream, ends_stream, n_content, n_padding: n_left } = *data;
        let is_over = n_content + n_left == 0;
        if is_over {
            self.data = None;
        }
        Some(DataPart { stream, content, n_sent: content.len() + n_padding, ends_stream: ends_stream && is_over })
    }

    /// Passes over bytes that are not in the capture, if they are part of a DATA frame.
    pub(super) fn skip(&mut self, n: u64) -> Option<DataPart<'static>> {
        let data = self.data.as_mut()?;
        let n = usize::try_from(n).ok().filter(|n| *n <= data.n_content + data.n_padding)?;
        let n_content = n.min(data.n_content);
        data.n_content -= n_content;
        data.n_padding -= n - n_content;
        let BegunData { stream, ends_stream, n_content, n_padding } = *data;
        let is_over = n_content + n_padding == 0;
        if is_over {
            self.data = None;
        }
        Some(DataPart { stream, content: &[], n_sent: 0, ends_stream: ends_stream && is_over })
    }

    fn fill(&mut self, bytes: &mut &[u8], length: usize) {
        let n = length.saturating_sub(self.begun.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(n);
        self.begun.extend_from_slice(taken);
        *bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0x80, 0, 0, stream][..], payload].concat()
    }

    #[test]
    fn frames_and_their_content_are_the_same_wherever_they_are_divided() {
        let sent = [
            frame(4, 0, 0, &[0; 6]),
            frame(HEADERS, PADDED | PRIORITY | END_HEADERS, 1, &[2, 9, 9, 9, 9, 9, b'a', b'b', 0, 0]),
            frame(DATA, PADDED, 1, b"\x02hello\0\0"),
            frame(DATA, END_STREAM, 1, b""),
        ]
        .concat();
        for size in 1..=sent.len() {
            let mut reader = FrameReader::default();
            let (mut content, mut n_sent, mut is_ended, mut kinds) = (Vec::new(), 0, false, Vec::new());
            for mut part in sent.chunks(size) {
                while let Some(part) = reader.read(&mut part, Nanos(1)).unwrap() {
                    match part {
                        FramePart::Whole(frame) => {
                            n_sent += frame.n_sent();
                            kinds.push(frame.kind);
                            if frame.kind == HEADERS {
                                assert_eq!((frame.field_block(), frame.stream), (Ok(&b"ab"[..]), 1));
                            }
                        }
                        FramePart::Data(data) => {
                            assert!(!is_ended);
                            content.extend(data.content);
                            n_sent += data.n_sent;
                            is_ended = data.ends_stream;
                        }
                    }
                }
            }
            assert_eq!(
                (&content[..], n_sent, is_ended, kinds),
                (&b"hello"[..], sent.len(), true, vec![4, HEADERS]),
                "{size}"
            );
        }
    }

    #[test]
    fn missing_bytes_are_passed_over_within_data_alone() {
        let mut reader = FrameReader::default();
        let sent = frame(DATA, END_STREAM, 3, &[7; 10]);
        let mut begin = &sent[..12];
        while reader.read(&mut begin, Nanos(1)).unwrap().is_some() {}
        assert_eq!(reader.skip(8), None);
        assert_eq!(reader.skip(6).map(|part| (part.stream, part.ends_stream)), Some((3, false)));
        assert_eq!(reader.skip(1).map(|part| part.ends_stream), Some(true));
        assert_eq!(reader.skip(1), None);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let read = |bytes: &[u8]| FrameReader::default().read(&mut &*bytes, Nanos(1)).map(drop);
        assert_eq!(read(&frame(DATA, PADDED, 1, &[2, 1])), Err(Malformed));
        assert_eq!(read(&[3, 0, 0, HEADERS, 0, 0, 0, 0, 1]), Err(Malformed));
        let padded = frame(HEADERS, PADDED, 1, &[5, 1]);
        let Ok(Some(FramePart::Whole(frame))) = FrameReader::default().read(&mut &padded[..], Nanos(1)) else {
            panic!()
        };
        assert_eq!(frame.field_block(), Err(Malformed));
    }
}
