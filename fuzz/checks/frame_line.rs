//! What must hold for every text that claims to describe a frame.
//!
//! Shared by the fuzz target and by the test of `packet` that runs the corpus.

use fathom_model::MacAddress;
use std::net::{Ipv4Addr, Ipv6Addr};

use fathom_packet::craft::{
    CraftError, FrameContext, FrameEndpoint, FrameEndpoints, FrameSet, FrameSpec, SizeMix, check_policy,
};

const END: FrameEndpoint = FrameEndpoint {
    mac: MacAddress([2, 0, 0, 0, 0, 1]),
    ipv4: Some(Ipv4Addr::LOCALHOST),
    ipv6: Some(Ipv6Addr::LOCALHOST),
    port: 9,
};
const SETUP: FrameContext =
    FrameContext { ends: FrameEndpoints { source: END, target: END }, mtu_bytes: 9000, seed: 1 };

/// Either its fault is told with its place, or frames follow from it that are the same each time they are written.
pub(crate) fn frame_line(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let read = FrameSpec::read(text).map_err(CraftError::Spec);
    let set = read.and_then(|line| FrameSet::from_spec(&line, SizeMix::of_size(None), None, &SETUP));
    let set = match set {
        Ok(set) => set,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let CraftError::Spec(error) = &error {
                assert!(error.span.start <= error.span.end && error.span.end <= text.len(), "{error:?}");
            }
            return;
        }
    };
    let _ = check_policy(&set, &SETUP.ends);
    let template = &set.templates[0];
    let mut frame = template.bytes.clone();
    for (flow, sequence) in [(set.n_flows - 1, u64::MAX), (0, 7), (0, 0)] {
        template.write(&mut frame, &set.frame_index(flow, sequence, [0; 18]));
    }
    assert_eq!(frame, template.bytes, "{text}");
}
