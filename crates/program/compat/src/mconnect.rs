//! Drop-in for mconnect: many connects to one address, counted by the name of the server that answers.

use std::{collections::BTreeMap, fmt::Write as _};

use fathom_engine::StopFlag;
use fathom_model::{
    Plan, Record, Settings, TestPlan, TrialTimes, host_port::split_host_port, plan::HostReach, targets::target_name,
    units::Nanos,
};
use fathom_run::{allow::AllowList, exit::Exit};
use fathom_sys::{
    clock,
    process::{signal, threads},
};
use fathom_targets::{Dialect, Identity, IdentityServer};
use jiff::Zoned;
use serde::Serialize;

use crate::{
    closed_loop::{self, MeasuredLoop},
    go_flags::{GoFlag, GoFlags, GoValue, ReadFlags},
};

const HELP: &str = "
Makes many connections to one address, and counts them by the name of the
server that answers. The server is `mconnect -server`, or fathom's own.

Options;
";

const FLAGS: GoFlags = GoFlags {
    program: "mconnect",
    help: HELP,
    flags: &[
        GoFlag { name: "address", value: GoValue::Text, default: "[::1]:5001", about: "Server address" },
        GoFlag { name: "k8sprobe", value: GoValue::Text, default: "", about: "k8s liveness address (http)" },
        GoFlag { name: "keep", value: GoValue::Flag, default: "", about: "Keep connections open" },
        GoFlag { name: "maxconcurrent", value: GoValue::Number, default: "64", about: "Max concurrent connects" },
        GoFlag { name: "nconn", value: GoValue::Number, default: "1", about: "Number of connections" },
        GoFlag { name: "output", value: GoValue::Text, default: "txt", about: "Output format; json|txt" },
        GoFlag { name: "seed", value: GoValue::Number, default: "0", about: "Rnd seed. 0 = init from time" },
        GoFlag { name: "server", value: GoValue::Flag, default: "", about: "Act as server" },
        GoFlag { name: "srccidr", value: GoValue::Text, default: "", about: "Base source CIDR to use" },
        GoFlag { name: "timeout", value: GoValue::Span, default: "0s", about: "Timeout" },
        GoFlag { name: "udp", value: GoValue::Flag, default: "", about: "Use UDP" },
        GoFlag { name: "version", value: GoValue::Flag, default: "", about: "Print version and quit" },
    ],
};

/// How often the end is looked for.
const SIGNAL_CHECK_EVERY: Nanos = Nanos::from_millis(50);
/// What mconnect allows for each connect, and beyond all of them.
const PER_CONNECT: Nanos = Nanos::from_millis(1);
const MARGIN: Nanos = Nanos::from_secs(2);

/// Runs mconnect with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let (words, extras) = closed_loop::without_extras(words);
    let flags = match FLAGS.read(&words) {
        ReadFlags::Given(flags) => flags,
        ReadFlags::Ended(exit) => return Ok(exit),
    };
    if flags.flag("version") {
        return closed_loop::print_now(&format!("{}\n", fathom_run::registry::TOOL)).map(|()| Exit::Pass);
    }
    if let Some(name) = ["k8sprobe", "keep"].into_iter().find(|name| flags.is_given(name)) {
        return Ok(FLAGS.refuse(&format!(
            "-{name} is not supported; `fathom tcp ADDRESS --test consistency` keeps connections open"
        )));
    }
    if flags.flag("server") {
        return serve(&flags.text("address"), Dialect::Mconnect);
    }
    let Some(client) = ConnectCounts::of(&flags) else {
        return Ok(FLAGS.refuse("-nconn and -maxconcurrent are numbers from 1"));
    };
    let address = match dial_address(&flags.text("address")) {
        Ok(address) => address,
        Err(why) => return Ok(FLAGS.refuse(&why)),
    };
    let started = Zoned::now();
    let measured = MeasuredLoop::of_plan(client.plan(&address, &flags), allowed)?;
    let counts = client.counted(measured.record()?);
    let text = match flags.text("output").as_str() {
        "json" => counts.json(&started)?,
        _ => counts.text(),
    };
    closed_loop::print_now(&text)?;
    extras.print(&measured)?;
    Ok(if counts.failed_connects + counts.failed_reads > 0 { Exit::Code(1) } else { Exit::Pass })
}

/// Serves the protocol of a tool until a signal.
pub(super) fn serve(address: &str, dialect: Dialect) -> anyhow::Result<Exit> {
    let at = listen_address(address);
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let bound = at.ok_or_else(|| format!("{address} is no address with a port")).and_then(|at| {
        let server = IdentityServer::bind(at, Identity::new(name.trim(), 0), dialect);
        server.map_err(|error| format!("{error}: {}", error.source))
    });
    let server = match bound {
        Ok(server) => server,
        Err(why) => {
            eprintln!("listen {why}");
            return Ok(Exit::Code(1));
        }
    };
    eprintln!("Listen on address;  {address}");
    let signals = signal::watch()?;
    let stop = StopFlag::default();
    let told = stop.clone();
    let serving = threads::start("server", move || server.run(&told))?;
    while !serving.is_finished() && signals.wait_until(clock::now() + SIGNAL_CHECK_EVERY)?.is_none() {}
    stop.finish();
    match serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        Ok(_) => Ok(signals.received().map_or(Exit::Pass, Exit::Signalled)),
        Err(error) => {
            eprintln!("{error}: {}", error.source);
            Ok(Exit::Code(1))
        }
    }
}

/// Returns the address that Go's `net.Listen` takes: without a host, all addresses of both families.
fn listen_address(address: &str) -> Option<std::net::SocketAddr> {
    match address.strip_prefix(':') {
        Some(port) => Some((fathom_interop::any_address(), port.parse().ok()?).into()),
        None => address.parse().ok(),
    }
}

/// Returns the address that Go's `net.Dial` takes: without a host, this machine over IPv4.
///
/// # Errors
/// It has no port, in the words of Go. All else that is wrong is for the test to say.
pub(super) fn dial_address(address: &str) -> Result<String, String> {
    if let Some(port) = address.strip_prefix(':').filter(|port| !port.contains(':')) {
        return Ok(format!("127.0.0.1:{port}"));
    }
    match split_host_port(address) {
        Some((host, None)) if host == address && host.contains(':') => {
            Err(format!("address {address}: too many colons in address"))
        }
        Some((_, None)) => Err(format!("address {address}: missing port in address")),
        _ => Ok(address.to_owned()),
    }
}

/// A client of mconnect as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConnectCounts {
    n_connections: u64,
    n_concurrent: u64,
    timeout: Nanos,
}

impl ConnectCounts {
    fn of(flags: &crate::go_flags::GivenFlags) -> Option<Self> {
        let number = |name: &str| u64::try_from(flags.number(name)).ok().filter(|n| *n > 0);
        let n_connections = number("nconn")?;
        let given = Some(flags.span("timeout")).filter(|given| *given > Nanos::ZERO);
        let timeout = given.unwrap_or(PER_CONNECT * n_connections + MARGIN);
        Some(Self { n_connections, n_concurrent: number("maxconcurrent")?.min(4096), timeout })
    }

    fn plan(&self, address: &str, flags: &crate::go_flags::GivenFlags) -> Plan {
        let mut settings = Settings::default()
            .with("host", address)
            .with("connections", self.n_connections.to_string())
            .with("concurrency", self.n_concurrent.to_string())
            .with("timeout", self.timeout.exact())
            .with("server", "mconnect");
        let sources = flags.text("srccidr");
        if !sources.is_empty() {
            settings.set("source", sources);
            settings.set("source-order", "random");
        }
        let here = "this machine".to_owned();
        let times = TrialTimes { warmup: Nanos::ZERO, duration: self.timeout };
        let kind = if flags.flag("udp") { "udp_spread" } else { "tcp_spread" };
        let test = TestPlan { options: settings, ..TestPlan::new(kind, times, &here) };
        let seed = u64::try_from(flags.number("seed")).ok().filter(|seed| *seed > 0);
        Plan {
            seed: seed.unwrap_or_else(|| clock::wall().0 & 0xffff_ffff),
            hosts: [(here, HostReach::This)].into(),
            ..Plan::new(format!("mconnect {address}"), vec![test])
        }
    }

    fn counted(&self, record: &Record) -> Counted {
        let mut hosts: BTreeMap<String, u64> = BTreeMap::new();
        for (target, n) in record.targets.iter().flat_map(|targets| &targets.answers) {
            *hosts.entry(target_name(target).to_owned()).or_default() += n;
        }
        let answered: u64 = hosts.values().sum();
        let is_read = |text: &str| text.starts_with("read:") || text.starts_with("recv:");
        let failed_reads =
            record.errors.iter().filter(|(failure, _)| is_read(&failure.to_string())).map(|(_, n)| n).sum();
        // What was not begun when the time was over is a connect that failed, as in mconnect.
        let failed_connects = self.n_connections.saturating_sub(answered).saturating_sub(failed_reads);
        Counted {
            hosts,
            connects: self.n_connections,
            failed_connects,
            failed_reads,
            timeout: self.timeout.0,
            duration: record.whole_span().unwrap_or(record.measured_ns.1).0,
        }
    }
}

/// What mconnect prints.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counted {
    hosts: BTreeMap<String, u64>,
    connects: u64,
    failed_connects: u64,
    failed_reads: u64,
    /// In nanoseconds.
    timeout: u64,
    /// In nanoseconds.
    duration: u64,
}

/// The JSON of mconnect, in its order.
#[derive(Serialize)]
struct MconnectJson<'a> {
    hosts: &'a BTreeMap<String, u64>,
    connects: u64,
    failed_connects: u64,
    failed_reads: u64,
    start_time: String,
    timeout: u64,
    duration: u64,
}

impl Counted {
    fn json(&self, started: &Zoned) -> anyhow::Result<String> {
        let start_time = started.strftime("%Y-%m-%dT%H:%M:%S.%N%:z").to_string();
        let Self { hosts, connects, failed_connects, failed_reads, timeout, duration } = self;
        let json = MconnectJson {
            hosts,
            connects: *connects,
            failed_connects: *failed_connects,
            failed_reads: *failed_reads,
            start_time,
            timeout: *timeout,
            duration: *duration,
        };
        Ok(format!("{}\n", serde_json::to_string(&json)?))
    }

    fn text(&self) -> String {
        let Self { failed_connects, failed_reads, .. } = self;
        let mut text = format!("Failed connects; {failed_connects}\nFailed reads; {failed_reads}\n");
        for (host, n) in &self.hosts {
            let _ = writeln!(text, "{host} {n}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Side, TargetsRecord};

    use super::*;

    #[test]
    fn what_was_not_begun_is_a_failed_connect() {
        let client = ConnectCounts { n_connections: 10, n_concurrent: 1, timeout: Nanos::from_secs(2) };
        let mut record = Record::empty(Side::Initiator);
        let answers = [("vm-1".to_owned(), 4), ("vm-2".to_owned(), 3)].into();
        record.targets = Some(TargetsRecord { answers, ..TargetsRecord::default() });
        record.errors.add("read: timeout", 1);
        let counted = client.counted(&record);
        assert_eq!(counted.text(), "Failed connects; 2\nFailed reads; 1\nvm-1 4\nvm-2 3\n");
    }

    #[test]
    fn an_address_without_a_host_is_all_addresses() {
        assert_eq!(listen_address("127.0.0.1:5").unwrap().to_string(), "127.0.0.1:5");
        assert_eq!(listen_address(":5001").unwrap().port(), 5001);
        assert_eq!(listen_address("x"), None);
    }

    #[test]
    fn a_client_takes_the_addresses_that_go_takes() {
        for (given, dialed) in [
            (":6000", Ok("127.0.0.1:6000")),
            ("[::1]:5001", Ok("[::1]:5001")),
            ("vip.example:5001", Ok("vip.example:5001")),
            ("::1", Err("address ::1: too many colons in address")),
            ("[::1]", Err("address [::1]: missing port in address")),
            ("10.0.0.1", Err("address 10.0.0.1: missing port in address")),
            ("[x]:1", Ok("[x]:1")),
        ] {
            assert_eq!(dial_address(given), dialed.map(str::to_owned).map_err(str::to_owned), "{given}");
        }
    }
}
