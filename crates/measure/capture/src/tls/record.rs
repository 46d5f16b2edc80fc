//! Divides the bytes of one side into records (RFC 8446 section 5.1, RFC 5246 section 6.2).

use super::TlsFate;

/// The type of a record, its version, and its length.
const HEADER: usize = 5;
/// The longest payload of an encrypted record: that of TLS 1.2 (RFC 5246 section 6.2.3).
const PAYLOAD_MAX: usize = (1 << 14) + 2048;

/// What a record holds (RFC 8446 appendix B.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    ChangeCipherSpec,
    Alert,
    Handshake,
    ApplicationData,
    /// A content that is passed over, such as a heartbeat (RFC 6520).
    Other,
}

impl Content {
    pub(super) const fn of(kind: u8) -> Self {
        match kind {
            20 => Self::ChangeCipherSpec,
            21 => Self::Alert,
            22 => Self::Handshake,
            23 => Self::ApplicationData,
            _ => Self::Other,
        }
    }
}

/// A whole record as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record(Vec<u8>);

impl Record {
    pub(super) fn content(&self) -> Content {
        Content::of(self.0[0])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.0[HEADER..]
    }

    /// Its header and its payload.
    pub(super) fn parts(&mut self) -> ([u8; HEADER], &mut [u8]) {
        let (header, payload) = self.0.split_first_chunk_mut().expect("a record has a header");
        (*header, payload)
    }
}

/// Puts the records of one side together, wherever segments divide them.
#[derive(Debug, Default)]
pub(super) struct RecordReader(Vec<u8>);

impl RecordReader {
    /// Takes bytes up to the end of the next record. Returns the record if it is whole.
    ///
    /// # Errors
    /// The bytes are no record.
    pub(super) fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Record>, TlsFate> {
        self.fill(bytes, HEADER);
        let Some([kind, major, _minor, length @ ..]) = self.0.first_chunk::<HEADER>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*length));
        if !(20..=24).contains(kind) || *major != 3 || length > PAYLOAD_MAX {
            return Err(TlsFate::Malformed);
        }
        self.fill(bytes, HEADER + length);
        let is_whole = self.0.len() == HEADER + length;
        Ok(is_whole.then(|| Record(std::mem::take(&mut self.0))))
    }

    fn fill(&mut self, bytes: &mut &[u8], length: usize) {
        let n = length.saturating_sub(self.0.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(n);
        self.0.extend_from_slice(taken);
        *bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_wherever_segments_divide_them() {
        let sent = [&[22, 3, 1, 0, 3, 1, 2, 3][..], &[23, 3, 3, 0, 0], &[20, 3, 3, 0, 1, 1]].concat();
        for size in 1..=sent.len() {
            let mut reader = RecordReader::default();
            let mut records = Vec::new();
            for mut segment in sent.chunks(size) {
                while let Some(record) = reader.read(&mut segment).unwrap() {
                    records.push((record.content(), record.payload().to_vec()));
                }
            }
            let wanted = [
                (Content::Handshake, vec![1, 2, 3]),
                (Content::ApplicationData, vec![]),
                (Content::ChangeCipherSpec, vec![1]),
            ];
            assert_eq!(records, wanted, "{size}");
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for bytes in [[22, 3, 1, 0x48, 1], [19, 3, 1, 0, 1], [22, 2, 1, 0, 1]] {
            assert_eq!(RecordReader::default().read(&mut &bytes[..]), Err(TlsFate::Malformed), "{bytes:?}");
        }
    }
}
