//! A condition on bytes of the transport header, such as `tcp[12:2]&0x01ff=0x0002`: the form of pcap-filter(7).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::protocol::Protocol;
use crate::classify::Packet;

/// Bytes of the header of one protocol, a mask, and the value under the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteMatch {
    protocol: Protocol,
    offset: u8,
    /// 1, 2 or 4.
    length: u8,
    mask: u32,
    value: u32,
}

/// Why a text is no condition on bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ByteMatchError {
    /// The text does not have the form.
    #[error("`{0}`: write PROTOCOL[OFFSET:LENGTH]&MASK=VALUE, such as tcp[12:2]&0x01ff=0x0002")]
    Form(String),
    /// The length is not one that is compared.
    #[error("`{0}`: the length is 1, 2 or 4 bytes")]
    Length(String),
    /// A number has more bytes than are compared.
    #[error("`{0}`: the mask and the value have at most as many bytes as are compared")]
    Wide(String),
    /// No packet can match.
    #[error("`{0}`: the value has bits that the mask removes, so that no packet matches")]
    Never(String),
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Splits the text into protocol, offset, length, mask and value.
fn pieces(text: &str) -> Option<(Protocol, u8, &str, Option<u32>, u32)> {
    let (place, condition) = text.split_once(']')?;
    let (protocol, place) = place.split_once('[')?;
    let (offset, length) = place.split_once(':').unwrap_or((place, "1"));
    let (mask, value) = condition.split_once('=')?;
    let mask = match mask {
        "" => None,
        mask => Some(number(mask.strip_prefix('&')?)?),
    };
    Some((protocol.parse().ok()?, offset.parse().ok()?, length, mask, number(value)?))
}

impl FromStr for ByteMatch {
    type Err = ByteMatchError;

    fn from_str(text: &str) -> Result<Self, ByteMatchError> {
        let (protocol, offset, length, mask, value) =
            pieces(text).ok_or_else(|| ByteMatchError::Form(text.to_owned()))?;
        let (length, all) = match length {
            "1" => (1, 0xff),
            "2" => (2, 0xffff),
            "4" => (4, u32::MAX),
            _ => return Err(ByteMatchError::Length(text.to_owned())),
        };
        let mask = mask.unwrap_or(all);
        if mask > all || value > all {
            return Err(ByteMatchError::Wide(text.to_owned()));
        }
        if value & !mask != 0 {
            return Err(ByteMatchError::Never(text.to_owned()));
        }
        Ok(Self { protocol, offset, length, mask, value })
    }
}

impl fmt::Display for ByteMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, offset, length, mask, value } = self;
        write!(f, "{protocol}[{offset}:{length}]&{mask:#x}={value:#x}")
    }
}

impl TryFrom<String> for ByteMatch {
    type Error = ByteMatchError;
    fn try_from(text: String) -> Result<Self, ByteMatchError> {
        text.parse()
    }
}

impl From<ByteMatch> for String {
    fn from(condition: ByteMatch) -> Self {
        condition.to_string()
    }
}

impl ByteMatch {
    /// Returns whether a packet meets the condition; one whose header is shorter, or was cut off, does not.
    #[must_use]
    pub fn matches(&self, packet: &Packet<'_>) -> bool {
        let offset = usize::from(self.offset);
        let bytes = packet.transport.get(offset..offset + usize::from(self.length));
        let value = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
        packet.key.protocol == self.protocol.0 && bytes.is_some_and(|bytes| value(bytes) & self.mask == self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_read_and_written() {
        for (text, written) in [
            ("tcp[12:2]&0x01ff=0x0002", "tcp[12:2]&0x1ff=0x2"),
            ("udp[8]=7", "udp[8:1]&0xff=0x7"),
            ("132[0:4]&4294967295=1", "sctp[0:4]&0xffffffff=0x1"),
        ] {
            let condition: ByteMatch = text.parse().unwrap();
            assert_eq!(condition.to_string(), written);
            assert_eq!(written.parse(), Ok(condition));
        }
    }

    #[test]
    fn what_is_no_condition_is_refused_with_its_fault() {
        for text in ["", "tcp", "tcp[12", "tcp[]=1", "tcp[256]=1", "tcp[0]1", "tcp[0]|3=1", "tcp[0]&x=1", "blue[0]=1"] {
            assert_eq!(text.parse::<ByteMatch>(), Err(ByteMatchError::Form(text.to_owned())));
        }
        assert_eq!("tcp[0:3]=1".parse::<ByteMatch>(), Err(ByteMatchError::Length("tcp[0:3]=1".to_owned())));
        assert_eq!("tcp[0]=256".parse::<ByteMatch>(), Err(ByteMatchError::Wide("tcp[0]=256".to_owned())));
        assert_eq!("tcp[0]&1=2".parse::<ByteMatch>(), Err(ByteMatchError::Never("tcp[0]&1=2".to_owned())));
    }
}
