//! The HTTP responder of `fathom serve` as an XDP program: its options, its addresses, and what it tells.

use std::{collections::BTreeSet, net::IpAddr};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_engine::{Error, Stop, StopFlag};
use fathom_http::ResponderOptions;
use fathom_http_xdp::responder::{AfterAnswer, ResponderPlace, XdpResponder, XdpResponderCounts};
use fathom_model::units::{Nanos, grouped};
use fathom_run::exit::{Exit, UserError, engine_error};
use fathom_sys::{bpf::XdpMode, clock, netlink::Netlink, policy::AllowedPeers};

use super::tool::client_networks;

/// The longest time until the end is noticed.
const LOOK_EVERY: Nanos = Nanos::from_millis(50);
/// The longest time until something that the user has to know is noticed. It takes the counters of the driver, and some drivers ask their
/// card for each of hundreds.
const TELL_EVERY: Nanos = Nanos::from_secs(1);
/// Options of the responder with sockets that a program does not have.
const OF_SOCKETS: [&str; 9] = [
    "http-unix",
    "http-threads",
    "http-delay",
    "http-stall",
    "http-statuses",
    "http-seed",
    "http-tls",
    "http-cert",
    "http-key",
];

/// Returns the options of the program.
pub(super) fn arguments() -> [Arg; 3] {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("HTTP responder")
    };
    let device =
        option("http-xdp", "DEVICE", "answer in the driver of this device, by an XDP program instead of sockets");
    let from = option("http-xdp-from", "CIDR", "the addresses that the program answers").action(ArgAction::Append);
    let mode = option("http-xdp-mode", "MODE", "native: in the driver; generic: later, for drivers without XDP");
    [
        device.conflicts_with_all(OF_SOCKETS),
        from.requires("http-xdp"),
        mode.requires("http-xdp").default_value("native").value_parser(["native", "generic"]),
    ]
}

/// Starts a program at a device. Returns a line for each address as well.
pub(super) fn open(
    matches: &ArgMatches,
    device: &str,
    (address, port): (IpAddr, u16),
    options: &ResponderOptions,
) -> anyhow::Result<(Vec<String>, XdpResponder)> {
    let guests = client_networks(matches, "http-xdp-from")?;
    if guests.is_empty() {
        let why = "the program keeps no connections, so it cannot know a forged source address, and an answer is longer than its request";
        let error =
            UserError::new(Exit::Usage, "--http-xdp needs the addresses that are answered").with_line("why", why);
        return Err(error.with_line("fix", "--http-xdp-from 10.0.0.0/8; for everybody 0.0.0.0/0 and ::/0").into());
    }
    if port == 0 {
        let error = UserError::new(Exit::Usage, "--http-xdp needs a port").with_line("fix", "--http-port 8080");
        return Err(error.into());
    }
    let after = AfterAnswer::try_from(options.keep_alive)
        .map_err(|error| engine_error(&error).with_line("option", "--http-keep-alive"))?;
    let mode = match matches.get_one::<String>("http-xdp-mode").map(String::as_str) {
        Some("generic") => XdpMode::Generic,
        _ => XdpMode::Native,
    };
    let addresses = addresses(device, address)?;
    let place = ResponderPlace { device: device.to_owned(), addresses, port, mode };
    let responder = XdpResponder::open(&place, &AllowedPeers::of(guests), (options.size, after));
    let responder = responder.map_err(|error| engine_error(&error))?;
    let about = format!("{mode} XDP on {device}, answers of {} bytes", responder.answer_bytes());
    let lines = responder.addresses().iter().map(|address| format!("{:<7} {address}  {about}", "http")).collect();
    Ok((lines, responder))
}

/// The addresses to answer at: this one, or those of the device if it stands for all of its version of IP, or for all.
fn addresses(device: &str, listen: IpAddr) -> Result<Vec<IpAddr>, UserError> {
    if !listen.is_unspecified() {
        return Ok(vec![listen]);
    }
    let of_device = || {
        let mut netlink = Netlink::open()?;
        let Ok(link) = netlink.link(device) else { return Ok(None) };
        let own =
            netlink.addresses()?.into_iter().filter(|(index, _)| *index == link.index).map(|(_, address)| address);
        Ok(Some(own.filter(|address| listen.is_ipv6() || address.is_ipv4()).collect::<Vec<IpAddr>>()))
    };
    let found = of_device().map_err(|cause: fathom_sys::Error| {
        engine_error(&Error::System { what: format!("find the addresses of {device}"), cause })
    })?;
    if found.as_ref().is_some_and(Vec::is_empty) {
        let version = if listen.is_ipv4() { "IPv4 " } else { "" };
        let error = UserError::new(Exit::Preflight, format!("{device} has no {version}address"));
        return Err(error.with_line(
            "fix",
            "--listen :: for IPv6 as well, or --listen ADDRESS for one that this host has elsewhere",
        ));
    }
    // Of a device that does not exist there are none, which is told where it is looked for.
    Ok(found.unwrap_or_default())
}

/// Tells what the user has to know while the program answers, until it is stopped. Returns what it tells at the end, if it was
/// asked anything.
pub(super) fn watch(responder: &XdpResponder, stop: &StopFlag) -> Result<Option<String>, Error> {
    let mut told = BTreeSet::new();
    let mut tell = || -> Result<(), Error> {
        for note in responder.notes()? {
            if told.insert(note.id) {
                eprintln!("fathom serve: http: {}", note.text);
            }
        }
        Ok(())
    };
    let mut tell_at = clock::now();
    while stop.state() == Stop::Continue {
        if clock::now() >= tell_at {
            tell()?;
            tell_at = clock::now() + TELL_EVERY;
        }
        clock::sleep_until(clock::now() + LOOK_EVERY);
    }
    // What came since the last look, too.
    tell()?;
    Ok(closing(&responder.counts()?, responder.n_lost_by_driver()))
}

/// What was done; `None` if nothing came that is counted here. A driver may not count the answers that it lost.
fn closing(counts: &XdpResponderCounts, n_lost: Option<u64>) -> Option<String> {
    let lost = n_lost.map(|n_lost| format!(", {} lost by the driver", grouped(n_lost))).unwrap_or_default();
    (counts.syns + counts.requests + counts.sent + counts.strangers > 0).then(|| {
        format!(
            "{} requests and {} SYNs; {} frames sent{lost}, {} without room, {} of strangers dropped",
            grouped(counts.requests),
            grouped(counts.syns),
            grouped(counts.sent),
            grouped(counts.no_room),
            grouped(counts.strangers)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_tells_of_every_frame_that_was_sent() {
        assert_eq!(closing(&XdpResponderCounts::default(), Some(0)), None);
        let counts = XdpResponderCounts { sent: 3, ..XdpResponderCounts::default() };
        let text = closing(&counts, None).unwrap();
        assert!(text.starts_with("0 requests and 0 SYNs; 3 frames sent, 0 without room"), "{text}");
        let text = closing(&counts, Some(2)).unwrap();
        assert!(text.contains("3 frames sent, 2 lost by the driver, 0 without room"), "{text}");
    }
}
