//! Drop-in for ctraffic: many connections that send at a rate, and what became of them, as its JSON.
//!
//! ctraffic waits for each answer before it sends again; this client sends on its schedule, so that `Dropped` counts what could not be sent
//! for want of a connection.

mod analyze;
mod statistics;

use std::{net::IpAddr, path::Path};

use fathom_model::{
    Plan, Settings, TestPlan, TrialTimes,
    plan::HostReach,
    units::{Nanos, approximate},
};
use fathom_run::{allow::AllowList, exit::Exit, files::read_text};
use fathom_sys::clock;
use fathom_targets::Dialect;
use jiff::Zoned;

use self::statistics::{MESSAGE, Statistics, packet_size};
use crate::{
    closed_loop::{self, MeasuredLoop},
    go_flags::{GivenFlags, GoFlag, GoFlags, GoValue, ReadFlags},
    mconnect,
};

/// The most connections of a test of ours.
const CONNECTIONS_MAX: u64 = 20_000;
/// The fewest messages per second of a connection in a test of ours: with fewer, it shows no outage.
const LEAST_PER_SEC: f64 = 0.1;

/// A longest address and a line end for each connection.
const SOURCES_BYTES_MAX: u64 = CONNECTIONS_MAX * 48;

const HELP: &str = "
Sets up many continuous connections, and watches them, in 3 modes;

 1. Server - an echo-server that tells its hostname
 2. Client - traffic generator
 3. Analyze - of statistics that were stored

Options;
";

const FLAGS: GoFlags = GoFlags {
    program: "ctraffic",
    help: HELP,
    flags: &[
        GoFlag { name: "address", value: GoValue::Text, default: "[::1]:5003", about: "Server address" },
        GoFlag {
            name: "analyze",
            value: GoValue::Text,
            default: "throughput",
            about: "Post-test analyze throughput|hosts|connections",
        },
        GoFlag { name: "client", value: GoValue::Text, default: "echo", about: "echo" },
        GoFlag { name: "monitor", value: GoValue::Flag, default: "", about: "Monitor" },
        GoFlag { name: "nconn", value: GoValue::Number, default: "1", about: "Number of connections" },
        GoFlag { name: "psize", value: GoValue::Number, default: "1024", about: "Packet size" },
        GoFlag { name: "rate", value: GoValue::Real, default: "10", about: "Rate in KB/second" },
        GoFlag { name: "reconnect", value: GoValue::Flag, default: "true", about: "Re-connect on failures" },
        GoFlag { name: "retries", value: GoValue::Number, default: "10", about: "Number of re-connection retries" },
        GoFlag { name: "server", value: GoValue::Flag, default: "", about: "Act as server" },
        GoFlag { name: "srccidr", value: GoValue::Text, default: "", about: "Source CIDR" },
        GoFlag { name: "srcfile", value: GoValue::Text, default: "", about: "Sources from file" },
        GoFlag { name: "stat_file", value: GoValue::Text, default: "", about: "File for post-test analyzing" },
        GoFlag { name: "stats", value: GoValue::Text, default: "summary", about: "none|summary|all" },
        GoFlag { name: "timeout", value: GoValue::Span, default: "10s", about: "Timeout" },
        GoFlag { name: "udp", value: GoValue::Flag, default: "", about: "Use UDP" },
        GoFlag { name: "version", value: GoValue::Flag, default: "", about: "Print version and quit" },
    ],
};

/// Runs ctraffic with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let (words, extras) = closed_loop::without_extras(words);
    let flags = match FLAGS.read(&words) {
        ReadFlags::Given(flags) => flags,
        ReadFlags::Ended(exit) => return Ok(exit),
    };
    if flags.flag("version") {
        return closed_loop::print_now(&format!("{}\n", fathom_run::registry::TOOL)).map(|()| Exit::Pass);
    }
    if flags.is_given("stat_file") {
        return analyze::run(&flags.text("stat_file"), &flags.text("analyze"));
    }
    if flags.flag("server") {
        return mconnect::serve(&flags.text("address"), Dialect::Ctraffic);
    }
    if let Some(why) = unsupported(&flags) {
        return Ok(FLAGS.refuse(&why));
    }
    let address = match mconnect::dial_address(&flags.text("address")) {
        Ok(address) => address,
        Err(why) => return Ok(FLAGS.refuse(&why)),
    };
    if flags.flag("monitor") {
        eprintln!("ctraffic: -monitor prints nothing here while the test runs");
    }
    let sources = match sources(&flags) {
        Ok(sources) => sources,
        Err(why) => return Ok(FLAGS.refuse(&why)),
    };
    let started = Zoned::now();
    let measured = MeasuredLoop::of_plan(plan(&flags, &address, sources), allowed)?;
    let statistics = Statistics::of(measured.record()?, &flags, &started);
    match flags.text("stats").as_str() {
        "none" => {}
        "all" => closed_loop::print_now(&statistics.json()?)?,
        _ => closed_loop::print_now(&statistics.summary().json()?)?,
    }
    extras.print(&measured)?;
    Ok(Exit::Pass)
}

/// Returns why a client cannot run, if it cannot.
fn unsupported(flags: &GivenFlags) -> Option<String> {
    if flags.text("client") != "echo" {
        return Some(format!("Unsupported client;  {}", flags.text("client")));
    }
    let n_connections = u64::try_from(flags.number("nconn")).unwrap_or(0);
    if !(1..=CONNECTIONS_MAX).contains(&n_connections) {
        return Some(format!("-nconn is a number from 1 to {CONNECTIONS_MAX}"));
    }
    if !MESSAGE.contains(&packet_size(flags)) {
        return Some(format!("-psize is at most {}", MESSAGE.end()));
    }
    if flags.real("rate") <= 0.0 || flags.span("timeout") == Nanos::ZERO {
        return Some("-rate and -timeout are above 0".to_owned());
    }
    let per_connection = per_sec(flags) / approximate(n_connections);
    (per_connection < LEAST_PER_SEC).then(|| {
        let least = (flags.real("rate") * LEAST_PER_SEC / per_connection).ceil();
        format!("-nconn {n_connections} needs -rate {least}: a message of each connection in 10 s")
    })
}

/// The messages per second of all connections together.
fn per_sec(flags: &GivenFlags) -> f64 {
    flags.real("rate") * 1024.0 / approximate(u64::try_from(packet_size(flags)).unwrap_or(1))
}

/// Returns where connections come from: a network, or the addresses of a file, one a line and as many as connections.
///
/// # Errors
/// If the file cannot be read, has too few addresses, or a port.
fn sources(flags: &GivenFlags) -> Result<Option<String>, String> {
    let (network, file) = (flags.text("srccidr"), flags.text("srcfile"));
    if !network.is_empty() || file.is_empty() {
        return Ok(Some(network).filter(|network| !network.is_empty()));
    }
    let text = read_text(Path::new(&file), SOURCES_BYTES_MAX).map_err(|error| format!("{error:#}"))?;
    let address = |line: &str| {
        let bare = line.trim().trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().map_err(|_| format!("{file}: `{line}` is no address; a port is chosen by the kernel"))
    };
    let addresses = text.lines().map(address).collect::<Result<Vec<_>, _>>()?;
    if i64::try_from(addresses.len()).unwrap_or(i64::MAX) < flags.number("nconn") {
        return Err("Ran out of source addresses".to_owned());
    }
    Ok(Some(addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")))
}

fn plan(flags: &GivenFlags, address: &str, sources: Option<String>) -> Plan {
    let mut settings = Settings::default()
        .with("host", address)
        .with("flows", flags.number("nconn").to_string())
        .with("rate", format!("{:.6}/s", per_sec(flags)))
        .with("size", packet_size(flags).to_string())
        .with("server", "ctraffic");
    if let Some(sources) = sources {
        settings.set("source", sources);
    }
    if !flags.flag("reconnect") && !flags.flag("udp") {
        settings.set("once", "true");
    }
    let here = "this machine".to_owned();
    let times = TrialTimes { warmup: Nanos::ZERO, duration: flags.span("timeout") };
    let kind = if flags.flag("udp") { "udp_continuity" } else { "tcp_continuity" };
    let test = TestPlan { options: settings, ..TestPlan::new(kind, times, &here) };
    Plan {
        seed: clock::wall().0 & 0xffff_ffff,
        hosts: [(here, HostReach::This)].into(),
        ..Plan::new(format!("ctraffic {address}"), vec![test])
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refusal(words: &[&str]) -> Option<String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let ReadFlags::Given(flags) = FLAGS.read(&words) else { panic!("{words:?}") };
        unsupported(&flags)
    }

    #[test]
    fn limits_are_told_in_the_words_of_ctraffic() {
        assert_eq!(refusal(&["-nconn", "100"]), None);
        let slow = refusal(&["-nconn", "101"]).unwrap();
        assert_eq!(slow, "-nconn 101 needs -rate 11: a message of each connection in 10 s");
        assert_eq!(refusal(&["-nconn", "101", "-rate", "11"]), None);
        assert_eq!(refusal(&["-nconn", "20001", "-rate", "1e6"]).unwrap(), "-nconn is a number from 1 to 20000");
        assert_eq!(refusal(&["-nconn", "0"]).unwrap(), "-nconn is a number from 1 to 20000");
    }

    #[test]
    fn sources_are_a_network_or_the_lines_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "127.0.0.2\n[::1]\n127.0.0.3\n").unwrap();
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let ReadFlags::Given(flags) = FLAGS.read(&words) else { panic!("{words:?}") };
            sources(&flags)
        };
        let path = file.path().to_str().unwrap();
        assert_eq!(of(&["-srcfile", path, "-nconn", "3"]), Ok(Some("127.0.0.2,::1,127.0.0.3".to_owned())));
        assert_eq!(of(&["-srcfile", path, "-nconn", "4"]), Err("Ran out of source addresses".to_owned()));
        assert_eq!(of(&["-srcfile", path, "-srccidr", "127.0.0.0/8"]), Ok(Some("127.0.0.0/8".to_owned())));
        assert_eq!(of(&["-nconn", "1"]), Ok(None));
        fs::write(file.path(), "127.0.0.2:5000\n").unwrap();
        assert!(of(&["-srcfile", path]).unwrap_err().contains("is no address; a port is chosen by the kernel"));
        assert!(of(&["-srcfile", "/no/such/file"]).unwrap_err().contains("/no/such/file"));
    }

    #[test]
    fn the_rate_of_the_plan_is_that_of_all_connections() {
        let words = ["-nconn", "5", "-rate", "100", "-psize", "512"].map(str::to_owned);
        let ReadFlags::Given(flags) = FLAGS.read(&words) else { panic!("{words:?}") };
        let plan = plan(&flags, "127.0.0.1:5003", None);
        assert_eq!(plan.tests[0].options.text("rate").as_deref(), Some("200.000000/s"));
        assert_eq!(plan.tests[0].options.text("host").as_deref(), Some("127.0.0.1:5003"));
    }
}
