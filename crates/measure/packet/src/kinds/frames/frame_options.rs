//! The frames that the options ask for, and the properties that the responder looks for.

use fathom_engine::Error;
use fathom_model::Settings;
use fathom_sys::{netlink::namespace::NetNs, policy::Policy};

use super::device::TestDevice;
use crate::craft::{self, CraftError, FrameContext, FrameOutline, FrameSet, check_policy};

/// The hosts that could receive the frames of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkScope {
    /// Hosts of a lab, in namespaces of their own.
    Lab,
    /// All hosts on the same wire.
    SharedWire,
}

impl NetworkScope {
    /// Returns the scope of the calling thread. Never a lab if it serves others.
    ///
    /// Only the launcher of a lab's agents starts them in another network namespace than its own. With
    /// `ip netns exec NAME fathom`, the agent is a child in the same namespace. That is not a lab, because nobody knows where its
    /// wires end.
    pub(super) fn of_thread(policy: &Policy) -> Result<Self, Error> {
        if policy.is_for_others() {
            return Ok(Self::SharedWire);
        }
        let cause = |cause| Error::System { what: "tell whether this is a lab".to_owned(), cause };
        Ok(if NetNs::is_inherited().map_err(cause)? { Self::SharedWire } else { Self::Lab })
    }
}

/// Makes the frames from one end to the other. Outside labs they must come from this host and go to the host under test.
pub(super) fn frame_set(
    settings: &Settings,
    setup: &FrameContext,
    device: &TestDevice,
    reach: NetworkScope,
) -> Result<FrameSet, Error> {
    let blueprint = craft::from_settings(settings, setup).map_err(|error| craft_error(error, device))?;
    if reach == NetworkScope::SharedWire {
        check_policy(&blueprint, &setup.ends).map_err(|refusal| {
            let hint = Some(refusal.hint().to_owned());
            Error::Unsupported { what: refusal.to_string(), hint }
        })?;
    }
    Ok(blueprint)
}

/// Returns the properties of the frames that are known before the addresses are.
pub(super) fn outline(settings: &Settings, device: &TestDevice) -> Result<FrameOutline, Error> {
    craft::outline(settings, device.mtu_bytes()).map_err(|error| craft_error(error, device))
}

fn craft_error(error: CraftError, device: &TestDevice) -> Error {
    match error {
        CraftError::TooLong { size, needed, .. } => device.too_small_mtu(size, needed),
        other => other.into(),
    }
}
