//! The options of a test against an iperf3 server, and the resulting parameters.

use fathom_engine::Error;
use fathom_model::{
    OptionDoc, Settings, ValueKind,
    units::{Bytes, rounded},
};

use super::super::server_kind::{host_option, narrow};
use crate::iperf3::{ParameterFlag, Parameters, TransferDirection, TransportProtocol};
use fathom_transport::options::{self, BUFFER, CONGESTION, DSCP, MSS, NODELAY, PORT};

pub(super) const HOST: OptionDoc =
    host_option("iperf3 server, HOST or HOST:PORT; default: our own at the other end of a lab");
pub(super) const STREAMS: OptionDoc = OptionDoc {
    name: "flows",
    value: ValueKind::Count(1, 128),
    default: Some("1"),
    help: "parallel streams in each direction",
};
pub(super) const DIRECTION: OptionDoc = OptionDoc {
    name: "direction",
    value: ValueKind::Choice(&["up", "down", "both"]),
    default: Some("up"),
    help: "who sends: this side, the server, or both at the same time",
};
const BLOCK: OptionDoc =
    OptionDoc { name: "write", value: ValueKind::Size, default: None, help: "bytes per send call; default: 128 KiB" };
const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: None,
    help: "payload bytes per datagram, 16 to 65507; default: the largest that fits the path MTU",
};
const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::BitRate,
    default: None,
    help: "total payload rate of all streams, both directions; default: as fast as possible",
};
const SENDFILE: OptionDoc = OptionDoc {
    name: "sendfile",
    value: ValueKind::Flag,
    default: Some("false"),
    help: "send with sendfile (no copy on the sender)",
};
const DISCARD: OptionDoc = OptionDoc {
    name: "discard",
    value: ValueKind::Flag,
    default: Some("false"),
    help: "receivers discard in the kernel (MSG_TRUNC), if they can",
};
const COUNTERS: OptionDoc = OptionDoc {
    name: "counters-64bit",
    value: ValueKind::Flag,
    default: Some("true"),
    help: "number datagrams with 64 bits (iperf3 3.1 and later)",
};

pub(super) const TCP_OPTIONS: &[OptionDoc] =
    &[HOST, STREAMS, DIRECTION, BLOCK, RATE, SENDFILE, DISCARD, NODELAY, CONGESTION, BUFFER, MSS, DSCP, PORT];
pub(super) const UDP_OPTIONS: &[OptionDoc] = &[HOST, STREAMS, DIRECTION, SIZE, RATE, COUNTERS, BUFFER, DSCP, PORT];

/// Returns the parameters for the server; the caller sets the time.
pub(super) fn parameters(carrier: TransportProtocol, settings: &Settings) -> Result<Parameters, Error> {
    let (block, least, most) = match carrier {
        TransportProtocol::Tcp => (BLOCK, 1, 1 << 20),
        TransportProtocol::Udp => (SIZE, 16, 65_507),
    };
    let size = settings.size(block.name).unwrap_or(Bytes(0));
    if size.0 != 0 && !(least..=most).contains(&size.0) {
        return Err(options::invalid_value(block.name, &format!("{least} B to {most} B"), &size));
    }
    let parallel: u32 = narrow(settings, &STREAMS).unwrap_or(1);
    let mut parameters = Parameters {
        protocol: carrier,
        parallel,
        block: size,
        direction: match settings.text(DIRECTION.name).as_deref() {
            Some("down") => TransferDirection::Reverse,
            Some("both") => TransferDirection::Both,
            _ => TransferDirection::Forward,
        },
        mss: narrow(settings, &MSS).unwrap_or(0),
        window: settings.size(BUFFER.name).unwrap_or(Bytes(0)),
        tos: narrow::<u8>(settings, &DSCP).map_or(0, |dscp| dscp << 2),
        congestion: settings.text(CONGESTION.name),
        // Peers may look for a version that they know.
        version: Some(concat!("3.12 (fathom ", env!("CARGO_PKG_VERSION"), ")").to_owned()),
        ..Parameters::default()
    };
    let n_streams = f64::from(parameters.n_streams());
    parameters.bitrate = settings.bit_rate(RATE.name).map_or(0, |rate| rounded(rate.get() / n_streams));
    if settings.text(NODELAY.name).as_deref() == Some("on") {
        parameters.flags.add(ParameterFlag::NoDelay);
    }
    let wishes = [
        (&SENDFILE, ParameterFlag::ZeroCopy),
        (&DISCARD, ParameterFlag::SkipReceiveCopy),
        (&COUNTERS, ParameterFlag::Counters64),
    ];
    wishes.iter().filter(|(option, _)| settings.flag(option.name)).for_each(|(_, wish)| parameters.flags.add(*wish));
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_all_streams_together() {
        let settings =
            Settings::default().with("flows", "4").with("rate", "1G").with("direction", "both").with("size", "1400");
        let parameters = parameters(TransportProtocol::Udp, &settings).unwrap();
        assert_eq!((parameters.bitrate, parameters.n_streams(), parameters.block), (125_000_000, 8, Bytes(1400)));
        assert!(super::parameters(TransportProtocol::Udp, &Settings::default().with("size", "15")).is_err());
    }
}
