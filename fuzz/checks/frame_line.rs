//! What must hold for every text that claims to describe a frame.
//!
//! Shared by the fuzz target and by the test of `packet` that runs the corpus.

use std::net::{Ipv4Addr, Ipv6Addr};

use fathom_packet::{
    craft::{Blueprint, CraftError, End, Ends, Line, Mix, Setup, judge},
    wire::MacAddress,
};

const END: End = End {
    mac: MacAddress([2, 0, 0, 0, 0, 1]),
    ipv4: Some(Ipv4Addr::LOCALHOST),
    ipv6: Some(Ipv6Addr::LOCALHOST),
    port: 9,
};
const SETUP: Setup = Setup { ends: Ends { source: END, target: END }, mtu_bytes: 9000, seed: 1 };

/// Either its fault is told with its place, or frames follow from it that are the same each time they are written.
pub(crate) fn frame_line(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let read = Line::read(text).map_err(CraftError::Line);
    let blueprint = read.and_then(|line| Blueprint::draw(&line, Mix::one(None), None, &SETUP));
    let blueprint = match blueprint {
        Ok(blueprint) => blueprint,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let CraftError::Line(error) = &error {
                assert!(error.span.start <= error.span.end && error.span.end <= text.len(), "{error:?}");
            }
            return;
        }
    };
    let _ = judge(&blueprint, &SETUP.ends);
    let shape = &blueprint.shapes[0];
    let mut frame = shape.bytes.clone();
    for (flow, sequence) in [(blueprint.n_flows - 1, u64::MAX), (0, 7), (0, 0)] {
        shape.write(&mut frame, &blueprint.turn(flow, sequence, [0; 18]));
    }
    assert_eq!(frame, shape.bytes, "{text}");
}
