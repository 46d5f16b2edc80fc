//! Frames that are not for a slot pass as they came; those that lie about their lengths are dropped.

use std::{cell::RefCell, net::IpAddr};

use fathom_sys::bpf::XdpAction;
use proptest::prelude::*;

use super::{
    frames::{Over, from_server, setup},
    interpreted::{InterpretedLoad, SLOT},
};
use crate::{
    frame::{Layout, PROTOCOL, octets},
    machine::{Conditions, Connection, Rules, Segment, State, flag},
    program::{Counter, LoadSetup},
};

const RULES: Rules = Rules { request_length: 57, closes: false, is_open_load: false, port_mask: 255 };

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is somebody else's.
    Passed,
    /// Its lengths contradict each other.
    Dropped,
    /// It is a segment for a slot.
    Received,
}

/// What the headers of a frame say (RFC 791, RFC 8200, RFC 9293).
fn fate(setup: &LoadSetup, frame: &[u8]) -> Fate {
    let layout = Layout::of(setup.ends.server.ip());
    let at = |offset: i16| usize::from(offset.unsigned_abs());
    let tcp = at(layout.tcp());
    if frame.len() < tcp + 20 {
        return Fate::Passed;
    }
    let half = |offset: usize| u16::from_be_bytes([frame[offset], frame[offset + 1]]);
    let address = |offset: i16| &frame[at(offset)..at(offset + layout.address)];
    let is_ip = half(12) == layout.ethertype
        && if layout.is_v4() { frame[14] == 0x45 && half(20) % 0x4000 == 0 } else { frame[14] >> 4 == 6 };
    let is_from_server =
        address(layout.source) == octets(setup.ends.server.ip()) && half(tcp) == setup.ends.server.port();
    let ports = 0..=setup.slots.port_mask();
    let own = octets(address_of(address(layout.destination)));
    let is_ours = (0..setup.slots.n).any(|slot| {
        let [first, last] = [*ports.start(), *ports.end()].map(|port_idx| setup.slots.place(slot, port_idx));
        octets(first.ip()) == own && (first.port()..=last.port()).contains(&half(tcp + 2))
    });
    if !is_ip || frame[at(layout.protocol)] != PROTOCOL || !is_from_server || !is_ours {
        return Fate::Passed;
    }
    let header = usize::from(frame[tcp + 12] >> 4) * 4;
    let n_segment = usize::from(half(at(layout.length))).checked_sub(at(layout.counted));
    let is_whole = n_segment.is_some_and(|n| header >= 20 && n >= header && tcp + n <= frame.len());
    if is_whole { Fate::Received } else { Fate::Dropped }
}

fn address_of(bytes: &[u8]) -> IpAddr {
    <[u8; 4]>::try_from(bytes).map_or_else(|_| <[u8; 16]>::try_from(bytes).unwrap().into(), Into::into)
}

#[test]
fn broken_frames_are_passed_or_dropped_and_change_nothing() {
    for over in Over::ALL {
        let setup = setup(over, RULES, 3_000);
        let row = Connection {
            send_next: 1_000,
            receive_next: 5_000,
            state: State::Waiting,
            port_idx: 7,
            ..Connection::default()
        };
        let segment = Segment { flags: flag::ACK, sequence: 6_000, acknowledgement: 1_000, length: 100 };
        let whole = from_server(&setup, setup.slots.place(SLOT, row.port_idx), &segment, &[1; 4], &[0x55; 100]);
        let load = RefCell::new(InterpretedLoad::new(setup));
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) };
        // Bytes of the headers that differ, and the bytes that are missing or too many.
        let changes = prop::collection::vec((0..80_usize, any::<u8>()), 0..3);
        let lengths = prop_oneof![Just(None), (14..200_usize).prop_map(Some)];
        proptest!(config, |(changes in changes, length in lengths)| {
            let mut frame = whole.clone();
            for (at, byte) in changes {
                frame[at] = byte;
            }
            frame.resize(length.unwrap_or(frame.len()), 0);
            check(&mut load.borrow_mut(), &row, &frame)?;
        });
    }
}

fn check(load: &mut InterpretedLoad, row: &Connection, frame: &[u8]) -> Result<(), TestCaseError> {
    load.set_words(&row.row());
    load.clear_books();
    let at = Conditions { now: 1 << 40, stops: false, rules: RULES };
    let (action, left) = load.receive(frame, &at).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let fate = fate(&load.setup, frame);
    match fate {
        Fate::Passed => prop_assert_eq!((action, left), (XdpAction::Pass as u32, frame.to_vec())),
        Fate::Dropped => prop_assert_eq!(action, XdpAction::Drop as u32),
        Fate::Received => prop_assert_ne!(action, XdpAction::Pass as u32),
    }
    prop_assert_eq!(load.books()[Counter::Received.word()], u64::from(fate == Fate::Received));
    prop_assert!(fate == Fate::Received || load.words() == row.row(), "a frame that is not for it changes a row");
    Ok(())
}
