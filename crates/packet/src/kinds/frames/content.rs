//! What the options ask to send.

use fathom_engine::Error;
use fathom_model::Settings;

use super::{PORT, frame_size, n_flows};
use crate::{
    craft::{Blueprint, Change, Checksum, Cover, Edit, Per, Shape, Turn, Zero},
    wire::{Endpoint, Ethernet, Flow, Ipv4, Mark, MarkPlace, Template, Udp},
};

/// The ports that are nobody's (RFC 6335 section 6), of which each flow has one.
const SOURCE_PORTS: (u16, u64) = (49_152, 16_384);

/// The frames from one end to another.
pub(super) fn blueprint(settings: &Settings, (source, destination): (Endpoint, Endpoint)) -> Result<Blueprint, Error> {
    let size = frame_size(settings)?;
    let source = Endpoint { port: SOURCE_PORTS.0, ..source };
    let template = Template::new(&Flow { source, destination, trial: 0, number: 0 }, size);
    let mut bytes = template.bytes().to_vec();
    let (start, cover) = (Ethernet::LENGTH + Ipv4::LENGTH, Cover(1));
    let length = u16::try_from(bytes.len() - start).expect("a frame has at most 9018 bytes");
    let without_source = Udp { source: 0, destination: PORT, length, checksum: 0 };
    let edit = Edit {
        at: start,
        width: 2,
        fixed: 0,
        shift: 0,
        change: Change::Step {
            first: SOURCE_PORTS.0.into(),
            by: 1,
            n: SOURCE_PORTS.1.try_into().expect("there are such ports"),
        },
        per: Per::Flow,
        cover,
    };
    let base = without_source.sum(source.address, destination.address);
    let checksums = vec![Checksum { at: start + 6, base, zero: Zero::AsOnes }];
    let mut shape = Shape {
        mark_at: Some(MarkPlace::START),
        mark_cover: cover,
        edits: vec![edit],
        checksums,
        ..Shape::fixed(Vec::new())
    };
    shape.write(&mut bytes, &Turn { flow: 0, number: 0, mark: [0; Mark::LENGTH] });
    shape.bytes = bytes;
    Ok(Blueprint { shapes: vec![shape], order: vec![0], n_flows: n_flows(settings) })
}

/// Where the marks of these frames may lie.
pub(super) fn mark_places(_settings: &Settings) -> Vec<usize> {
    vec![MarkPlace::START]
}
