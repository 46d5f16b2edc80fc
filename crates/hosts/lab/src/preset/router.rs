//! Two hosts on two wires, connected by the kernel's router: a short name for a pair with that device.

use super::{Preset, Shape};
use crate::{
    device::{self, Device},
    family::Family,
};

pub(super) const PRESET: Preset = Preset {
    name: "router",
    about: "hosts a and b with the kernel's router between them: short for pair with --device router",
    hosts: &["a", device::HOST, "b"],
    device: Some(Device::Router),
    shape: Shape::Line,
    family: Family::Ipv4,
};
