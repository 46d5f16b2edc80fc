//! The kinds of tests that send requests without sockets, or by the engine that suits them.

mod http_auto;
mod http_xdp;
mod metrics;
mod options;
mod record;

use fathom_engine::TestKind;
use http_auto::HttpAuto;
pub use http_xdp::HttpXdp;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[&HttpXdp::Closed, &HttpXdp::Open, &HttpAuto::Closed, &HttpAuto::Open];
