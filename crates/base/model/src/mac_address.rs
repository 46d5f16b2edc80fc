//! The address of a network device in an Ethernet.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The MAC address of a network device (IEEE 802.3), in wire order; by default the one of zeros, which no device has but `lo`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MacAddress(pub [u8; 6]);

/// A text that is not six hexadecimal bytes with colons between them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address such as 02:00:00:00:00:01")]
pub struct MacError(String);

impl MacAddress {
    /// Of every device on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address in these bytes, if they are six: devices other than Ethernet have longer and shorter ones.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Whether it is a group address, so that frames to it reach several devices.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.map(|byte| format!("{byte:02x}")).join(":"))
    }
}

impl FromStr for MacAddress {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let byte = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
        let bytes: Option<Vec<u8>> = text.trim().split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        bytes.map(Self).ok_or_else(|| MacError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let address = MacAddress([0x02, 0, 0xab, 0, 0, 0x0f]);
        assert_eq!(address.to_string(), "02:00:ab:00:00:0f");
        assert_eq!("02:00:ab:00:00:0f\n".parse(), Ok(address));
        for text in
            ["", "02:00:ab:00:00", "02:00:ab:00:00:0f:00", "2:0:ab:0:0:f", "02-00-ab-00-00-0f", "+2:00:00:00:00:000"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }
}
