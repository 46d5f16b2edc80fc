//! What the options ask to send, and what the responder has to look for.

use fathom_engine::Error;
use fathom_model::Settings;
use fathom_sys::{netlink::namespace::NetNs, policy::Policy};

use super::device::TestDevice;
use crate::craft::{self, CraftError, FrameContext, FrameOutline, FrameSet, check_policy};

/// Who else could be reached by what a host sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkScope {
    /// The hosts of a lab, which are in namespaces of their own.
    Lab,
    /// Everybody on the same wire.
    SharedWire,
}

impl NetworkScope {
    /// Where the calling thread is; for others it is never a lab.
    ///
    /// Only the launcher of a lab's agents puts them into another namespace than its own. A user who runs `ip netns exec NAME fathom`
    /// has the agent as a child in the same namespace: that is no lab, because nobody knows where its wires end.
    pub(super) fn of_thread(policy: &Policy) -> Result<Self, Error> {
        if policy.is_for_others() {
            return Ok(Self::SharedWire);
        }
        let cause = |cause| Error::System { what: "tell whether this is a lab".to_owned(), cause };
        Ok(if NetNs::is_inherited().map_err(cause)? { Self::SharedWire } else { Self::Lab })
    }
}

/// The frames from one end to another; outside labs only from this host and to the one under test.
pub(super) fn frame_set(
    settings: &Settings,
    setup: &FrameContext,
    (device, reach): (&TestDevice, NetworkScope),
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

/// What can be told of them before the addresses are known.
pub(super) fn outline(settings: &Settings, device: &TestDevice) -> Result<FrameOutline, Error> {
    craft::outline(settings, device.mtu_bytes()).map_err(|error| craft_error(error, device))
}

fn craft_error(error: CraftError, device: &TestDevice) -> Error {
    match error {
        CraftError::TooLong { size, needed, .. } => device.too_small_mtu(size, needed),
        other => other.into(),
    }
}
