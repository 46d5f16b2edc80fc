//! What must hold for every text that claims to be pktgen's, and for every frame that may be.
//!
//! Shared by the fuzz target and by the test of `packet` that runs the corpus.

use fathom_pktgen::{DevicePorts, PktgenPacket, PktgenSetting, ReceivedPackets, Status};

/// Reads the bytes as each of the three: what was understood is printed, and understood the same again.
pub(crate) fn pktgen(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(status) = text.parse::<Status>() {
        assert_eq!(status.to_string().parse(), Ok(status.clone()), "{status}");
    }
    for line in text.lines() {
        if let Ok(setting) = line.parse::<PktgenSetting>() {
            assert_eq!(setting.to_string().parse(), Ok(setting.clone()), "{setting}");
            assert!(!setting.to_string().contains('\n'), "one line is one command: {setting}");
        }
    }
    let found = PktgenPacket::find(bytes);
    let mut received = ReceivedPackets::of(DevicePorts { first: 9, each: 1 }, 1);
    let length = fathom_model::units::Bytes(bytes.len() as u64);
    let is_counted = received.record(bytes, length, None);
    assert_eq!(is_counted, found.is_some_and(|packet| packet.source_port == 9));
}
