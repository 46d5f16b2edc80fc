//! The options of a test against an iperf 2 server, and the resulting options of the client.

use std::net::IpAddr;

use fathom_engine::{Consent, Error};
use fathom_model::{
    OptionDoc, Settings, ValueKind,
    units::{Nanos, rounded},
};
use fathom_sys::policy::Destination;
use fathom_transport::{
    options::{self, BUFFER, CONGESTION, DSCP, MSS, NODELAY, PORT},
    stream,
};

use super::super::server_kind::{host_option, narrow};
use crate::iperf2::{ClientOptions, ServerProof, SocketSetup, TestAmount, TestMode, TransportProtocol, UDP_LENGTH_MAX};

pub(super) const HOST: OptionDoc =
    host_option("iperf server, HOST or HOST:PORT; default: our own at the other end of a lab");
pub(super) const FLOWS: OptionDoc =
    OptionDoc { name: "flows", value: ValueKind::Count(1, 128), default: Some("1"), help: "parallel flows" };
pub(super) const DIRECTION: OptionDoc = OptionDoc {
    name: "direction",
    value: ValueKind::Choice(&["up", "down"]),
    default: Some("up"),
    help: "who sends: this side, or the server",
};
const BLOCK: OptionDoc =
    OptionDoc { name: "write", value: ValueKind::Size, default: None, help: "bytes per send call; default: 512 KiB" };
const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: Some("1470"),
    help: "payload bytes per datagram, 128 to 65507",
};
const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::BitRate,
    default: None,
    help: "total payload rate of all flows; default: as fast as possible",
};
const UNPROVEN: OptionDoc = OptionDoc {
    name: "unproven",
    value: ValueKind::Flag,
    default: Some("false"),
    help: "accept a server that does not show that it is iperf (before 2.0.10); needs --allow",
};

pub(super) const TCP_OPTIONS: &[OptionDoc] =
    &[HOST, FLOWS, DIRECTION, BLOCK, RATE, UNPROVEN, NODELAY, CONGESTION, BUFFER, MSS, DSCP, PORT];
pub(super) const UDP_OPTIONS: &[OptionDoc] = &[HOST, FLOWS, DIRECTION, SIZE, RATE, UNPROVEN, BUFFER, DSCP, PORT];

/// The shortest datagram that has room for the header and gets a whole report.
const SIZE_MIN: u64 = 128;
/// The longest write.
const BLOCK_MAX: u64 = 4 << 20;

/// Returns who has to agree to load the target: the server by its protocol, unless it need not show that it is one.
pub(super) fn consent(settings: &Settings) -> Consent {
    if settings.flag(UNPROVEN.name) { Consent::AllowList } else { Consent::Server }
}

/// Returns the length of a write or a datagram.
fn length(protocol: TransportProtocol, settings: &Settings) -> Result<usize, Error> {
    let (option, (least, most), default) = match protocol {
        TransportProtocol::Tcp => (BLOCK, (1, BLOCK_MAX), stream::CALL_BYTES as u64),
        TransportProtocol::Udp => (SIZE, (SIZE_MIN, UDP_LENGTH_MAX as u64), 1470),
    };
    let size = settings.size(option.name).map_or(default, |size| size.0);
    if !(least..=most).contains(&size) {
        return Err(options::invalid_value(option.name, &format!("{least} B to {most} B"), &size));
    }
    Ok(usize::try_from(size).expect("4 MiB at most"))
}

/// Checks the options that have ranges of their own.
pub(super) fn check(protocol: TransportProtocol, settings: &Settings) -> Result<(), Error> {
    length(protocol, settings).map(drop)
}

/// Returns the options of the client; the longest time of the trial is the time that the server gets to know.
pub(super) fn client_options(
    protocol: TransportProtocol,
    settings: &Settings,
    servers: Vec<Destination>,
    (from, longest): (Option<IpAddr>, Nanos),
) -> Result<ClientOptions, Error> {
    let n_flows: u32 = narrow(settings, &FLOWS).unwrap_or(1);
    Ok(ClientOptions {
        servers,
        protocol,
        mode: if settings.text(DIRECTION.name).as_deref() == Some("down") {
            TestMode::Reverse
        } else {
            TestMode::Forward
        },
        n_flows,
        length: Some(length(protocol, settings)?),
        rate: settings.bit_rate(RATE.name).map(|rate| rounded(rate.get() / f64::from(n_flows))),
        amount: TestAmount::Time(longest),
        from,
        setup: SocketSetup {
            window: settings.size(BUFFER.name),
            mss: narrow(settings, &MSS).filter(|mss| *mss > 0),
            has_no_delay: settings.text(NODELAY.name).as_deref() == Some("on"),
            tos: narrow::<u8>(settings, &DSCP).map_or(0, |dscp| dscp << 2),
            congestion: settings.text(CONGESTION.name),
        },
        proof: if settings.flag(UNPROVEN.name) { ServerProof::NotNeeded } else { ServerProof::Required },
        ..ClientOptions::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_need_not_show_what_it_is_needs_the_users_consent() {
        assert_eq!(consent(&Settings::default()), Consent::Server);
        assert_eq!(consent(&Settings::default().with("unproven", "true")), Consent::AllowList);
    }

    #[test]
    fn the_rate_is_that_of_all_flows_together() {
        let settings = Settings::default().with("flows", "4").with("rate", "1G").with("size", "1400");
        let options =
            client_options(TransportProtocol::Udp, &settings, Vec::new(), (None, Nanos::from_secs(3))).unwrap();
        assert_eq!((options.rate, options.n_flows, options.length), (Some(250_000_000), 4, Some(1400)));
        assert!(check(TransportProtocol::Udp, &Settings::default().with("size", "127")).is_err());
    }
}
