//! The options of a test against a netserver, and the resulting test.

use fathom_engine::Error;
use fathom_model::{
    OptionDoc, Settings, ValueKind,
    units::{Bytes, Nanos},
};

use super::super::server_kind::{host_option, narrow};
use crate::netperf::{DATAGRAM_MAX, DataPattern, DataProtocol, EndSettings, MESSAGE_MAX, TestSpec};
use fathom_transport::options::{self, BUFFER, CONGESTION, DSCP, NODELAY, PORT};

pub(super) const HOST: OptionDoc =
    host_option("netserver, HOST or HOST:PORT; default: our own at the other end of a lab");
pub(super) const FLOWS: OptionDoc = OptionDoc {
    name: "flows",
    value: ValueKind::Count(1, 1024),
    default: Some("1"),
    help: "parallel tests, each with a connection to the netserver and a thread",
};
pub(super) const DIRECTION: OptionDoc = OptionDoc {
    name: "direction",
    value: ValueKind::Choice(&["up", "down"]),
    default: Some("up"),
    help: "who sends: this side or the server",
};
const BLOCK: OptionDoc = OptionDoc {
    name: "write",
    value: ValueKind::Size,
    default: None,
    help: "bytes per send call; default: the size of the send buffer",
};
const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: Some("1400"),
    help: "payload bytes per datagram, 1 to 65507",
};
const SENDFILE: OptionDoc = OptionDoc {
    name: "sendfile",
    value: ValueKind::Flag,
    default: Some("false"),
    help: "send with sendfile (no copy on the sender)",
};
const REQUEST: OptionDoc =
    OptionDoc { name: "request", value: ValueKind::Size, default: Some("1"), help: "bytes of a request" };
const RESPONSE: OptionDoc =
    OptionDoc { name: "response", value: ValueKind::Size, default: Some("1"), help: "bytes of a response" };
const BURST: OptionDoc = OptionDoc {
    name: "burst",
    value: ValueKind::Count(1, 1024),
    default: Some("1"),
    help: "requests in flight per flow",
};
const TIMEOUT: OptionDoc = OptionDoc {
    name: "timeout",
    value: ValueKind::Span,
    default: Some("200ms"),
    help: "how long a lost datagram delays the next request",
};

pub(super) const TCP_STREAM: &[OptionDoc] =
    &[HOST, FLOWS, DIRECTION, BLOCK, SENDFILE, NODELAY, CONGESTION, BUFFER, DSCP, PORT];
pub(super) const TCP_RR: &[OptionDoc] =
    &[HOST, FLOWS, REQUEST, RESPONSE, BURST, NODELAY, CONGESTION, BUFFER, DSCP, PORT];
pub(super) const TCP_CRR: &[OptionDoc] = &[HOST, FLOWS, REQUEST, RESPONSE, NODELAY, BUFFER, DSCP, PORT];
pub(super) const UDP_STREAM: &[OptionDoc] = &[HOST, FLOWS, DIRECTION, SIZE, BUFFER, DSCP, PORT];
pub(super) const UDP_RR: &[OptionDoc] = &[HOST, FLOWS, REQUEST, RESPONSE, BURST, TIMEOUT, BUFFER, DSCP, PORT];

/// Returns the test; the caller sets its length.
pub(super) fn spec(of: &TestSpec, settings: &Settings) -> Result<TestSpec, Error> {
    let most = if of.protocol == DataProtocol::Udp { DATAGRAM_MAX } else { MESSAGE_MAX };
    let size = |option: &OptionDoc| -> Result<Option<u32>, Error> {
        let Some(size) = settings.size(option.name).filter(|size| *size != Bytes(0)) else { return Ok(None) };
        let bytes = u32::try_from(size.0).ok().filter(|size| *size <= most);
        bytes.map(Some).ok_or_else(|| options::invalid_value(option.name, &format!("1 B to {most} B"), &size))
    };
    let is_down = settings.text(DIRECTION.name).as_deref() == Some("down");
    let buffer = settings.size(BUFFER.name).and_then(|size| u32::try_from(size.0).ok()).filter(|size| *size > 0);
    let end = EndSettings {
        send_buffer: buffer,
        recv_buffer: buffer,
        has_no_delay: settings.text(NODELAY.name).as_deref() == Some("on"),
        congestion: settings.text(CONGESTION.name),
        traffic_class: narrow::<u8>(settings, &DSCP).map(|dscp| dscp << 2).filter(|class| *class > 0),
        ..EndSettings::default()
    };
    let call = size(if of.protocol == DataProtocol::Udp { &SIZE } else { &BLOCK })?;
    let mut spec = TestSpec {
        local: EndSettings { send_size: call, ..end.clone() },
        remote: EndSettings { send_size: call, measures_cpu: true, ..end },
        request_size: size(&REQUEST)?.unwrap_or(1),
        response_size: size(&RESPONSE)?.unwrap_or(1),
        burst: narrow::<u32>(settings, &BURST).map_or(0, |n| n.saturating_sub(1)),
        is_sendfile: settings.flag(SENDFILE.name),
        loss_timeout: settings.span(TIMEOUT.name).map(|span| span.max(Nanos::from_millis(1))),
        ..of.clone()
    };
    if of.pattern == DataPattern::Up && is_down {
        spec.pattern = DataPattern::Down;
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_a_datagram_are_refused() {
        let udp = TestSpec { protocol: DataProtocol::Udp, ..TestSpec::default() };
        assert!(spec(&udp, &Settings::default().with("size", "65508")).is_err());
        assert_eq!(spec(&udp, &Settings::default().with("size", "1")).unwrap().local.send_size, Some(1));
    }
}
