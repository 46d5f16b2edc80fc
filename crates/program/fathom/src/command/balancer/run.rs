//! `fathom balancer run`: the reference load balancer, until a signal ends it.

use std::{
    io::{self, Write as _},
    net::IpAddr,
    ops::RangeInclusive,
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_balancer::{
    BalancerSettings, Defects, Unmatched,
    device::{DataPath, DeviceError, DeviceSettings, DeviceTarget, ForwardMode, RunningBalancer, VerdictGrouping},
    flows::FlowLookup,
    fragments::FragmentSettings,
    maglev::TableSize,
};
use fathom_model::units::Nanos;
use fathom_sys::{clock, process::signal};

use super::{counter_text, json, name, user_error};
use crate::command::measurement;
use fathom_run::exit::{Exit, UserError};

/// How often the end of the lifetime and a thread that ended are looked for.
const LOOK: Nanos = Nanos::from_millis(200);

pub(super) fn define(command: Command) -> Command {
    let text =
        |id: &'static str, value: &'static str, help: &'static str| Arg::new(id).long(id).value_name(value).help(help);
    command.args([
        text("vip", "ADDRESS", "a virtual address whose packets are divided")
            .action(ArgAction::Append)
            .required(true)
            .value_parser(clap::value_parser!(IpAddr)),
        text("target", "TARGET", "NAME=ADDRESS[,ADDRESS][,weight=N]: a target, with an address for each IP version")
            .action(ArgAction::Append),
        text("tier", "BALANCER", "NAME=ADDRESS[,ADDRESS][,weight=N]: a balancer of a tier, to which fragments of its share of all pairs of addresses are sent on; without --tier-name this balancer is a first tier, which sends whole packets there too, by their flows")
            .action(ArgAction::Append),
        text("tier-name", "NAME", "this one among the balancers of --tier, which have the same list and the same targets"),
        text(
            "mode",
            "MODE",
            "dsr routes packets by their mark, and targets answer straight; dnat translates the destination",
        )
        .default_value("dsr")
        .value_parser(ForwardMode::WORDS),
        text(
            "data-path",
            "PATH",
            "nfqueue decides every packet in this process; xdp decides whole packets of TCP and UDP in a program on --interface, and leaves others to the queues; tc does the same behind the driver, for packets of several segments too",
        )
        .default_value("nfqueue")
        .value_parser(DataPath::WORDS),
        text("interface", "NAME", "with --data-path xdp or tc: an interface by which packets for the virtual address come in")
            .action(ArgAction::Append),
        text("queues", "M-N", "numbers of the queues; a thread reads each").default_value("0"),
        text("defect", "DEFECT", "a defect, such as mis-hash=1/100 or ignore-ports (docs/balancer.md)")
            .action(ArgAction::Append),
        name(),
        text("for", "TIME", "stop after this time [default: never]"),
        text("seed", "N", "seed of the draws of defects").default_value("0").value_parser(clap::value_parser!(u64)),
        text("table-size", "N", "places of the Maglev table, a prime [default: 65537]")
            .value_parser(clap::value_parser!(u32)),
        text("lookup", "HOW", "how flow rules are looked up").default_value("indexed").value_parser(FlowLookup::WORDS),
        text("unmatched", "WHAT", "what becomes of packets that no flow rule matches")
            .default_value("drop")
            .value_parser(["drop", "pass"]),
        text("fragment-slots", "N", "slots of the fragment table, and as many buckets [default: 20011]")
            .value_parser(clap::value_parser!(u32)),
        text("fragment-ttl", "TIME", "life of an entry of the fragment table [default: 200ms]"),
        text("fragments-stored", "N", "fragments that may wait for the first one of their datagram [default: 1024]")
            .value_parser(clap::value_parser!(u32)),
        text("queue-length", "N", "packets that may wait for a verdict in each queue [default: 4096]")
            .value_parser(clap::value_parser!(u32)),
        text(
            "verdicts",
            "HOW",
            "batch tells successive equal verdicts in one message, single each in a call of its own",
        )
        .default_value("batch")
        .value_parser(["batch", "single"]),
        text("first-mark", "N", "marks, routing tables and priorities begin behind this number [default: 20000]")
            .value_parser(clap::value_parser!(u32)),
        json(),
    ])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    // Signals are watched before anything is changed, so that an interrupt undoes it.
    let signals = signal::watch()?;
    let settings = settings(matches)?;
    let lifetime = matches.contains_id("for").then(|| measurement::duration_option(matches, "for", Nanos::ZERO));
    let deadline = lifetime.transpose()?.map(|lifetime| clock::now() + lifetime);
    let about = about(&settings);
    let running = RunningBalancer::start(settings).map_err(|error| user_error(&error))?;
    let ready = format!("{} {about} by {}; process {}", DeviceSettings::READY, running.way(), std::process::id());
    // Whoever started it may not read.
    let _ = writeln!(io::stdout(), "{ready}");
    let mut signal = None;
    while signal.is_none() && !running.has_failed() && deadline.is_none_or(|deadline| clock::now() < deadline) {
        signal = signals.wait_until(clock::now() + LOOK)?;
    }
    let counted = running.end().map_err(|error| user_error(&error))?;
    let counted = serde_json::to_value(counted)?;
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        writeln!(out, "{counted:#}")?;
    } else {
        counter_text::write_text(&mut out, "", &counted)?;
    }
    Ok(signal.map_or(Exit::Pass, Exit::Signalled))
}

/// What a balancer does, on one line.
fn about(settings: &DeviceSettings) -> String {
    let list = |words: Vec<String>| words.join(", ");
    let addresses = list(settings.virtual_addresses.iter().map(ToString::to_string).collect());
    let names = |of: &[DeviceTarget]| list(of.iter().map(|target| target.name.clone()).collect());
    let targets = match (settings.targets.is_empty(), &settings.balancer.own_name) {
        (true, None) if !settings.tier.is_empty() => format!("the balancers {}", names(&settings.tier)),
        (true, _) => "no target yet".to_owned(),
        (false, _) => names(&settings.targets),
    };
    let own = settings.balancer.own_name.as_ref();
    let tier = own.map_or_else(String::new, |own| format!("; {own} of the tier {}", names(&settings.tier)));
    let (first, last) = (settings.queues.start(), settings.queues.end());
    let queues = if first == last { format!("queue {first}") } else { format!("queues {first}-{last}") };
    let interfaces = list(settings.interfaces.clone());
    let by = match (settings.data_path, settings.balancer.defects.beside_table()) {
        (DataPath::Nfqueue, _) => queues,
        (path, None) => format!("{} on {interfaces} before {queues}", path.to_string().to_uppercase()),
        (path, Some(defects)) => {
            let path = path.to_string().to_uppercase();
            format!("{path} on {interfaces} leaves everything to {queues}, because of defect {defects},")
        }
    };
    format!("{addresses} among {targets}{tier}; mode {}; {by}", settings.mode)
}

fn settings(matches: &ArgMatches) -> anyhow::Result<DeviceSettings> {
    let wrong =
        |option: &str, error: &dyn std::fmt::Display| UserError::new(Exit::Usage, format!("--{option}: {error}"));
    let word = |id: &str| matches.get_one::<String>(id).map(String::as_str).unwrap_or_default();
    let all = |id: &str| matches.get_many::<String>(id).into_iter().flatten();
    let number = |id: &str| matches.get_one::<u32>(id).copied();
    let hosts = |id: &str| all(id).map(|text| text.parse()).collect::<Result<Vec<DeviceTarget>, DeviceError>>();
    let targets = hosts("target").map_err(|error| user_error(&error))?;
    let tier = hosts("tier").map_err(|error| wrong("tier", &error))?;
    let defects: Vec<String> = all("defect").cloned().collect();
    let defects: Defects = defects.join(",").parse().map_err(|error| wrong("defect", &error))?;
    let table_size = number("table-size").map_or(Ok(TableSize::USUAL), TableSize::new);
    let usual = FragmentSettings::USUAL;
    let n_slots = number("fragment-slots").unwrap_or(usual.n_slots);
    let balancer = BalancerSettings {
        table_size: table_size.map_err(|error| wrong("table-size", &error))?,
        fragments: FragmentSettings {
            n_slots,
            n_buckets: n_slots,
            n_shards: usual.n_shards.min(n_slots.max(1)),
            n_stored: number("fragments-stored").unwrap_or(usual.n_stored),
            ttl: measurement::duration_option(matches, "fragment-ttl", usual.ttl)?,
            ..usual
        },
        flow_lookup: word("lookup").parse().map_err(|error: String| wrong("lookup", &error))?,
        unmatched: if word("unmatched") == "pass" { Unmatched::Pass } else { Unmatched::Drop },
        defects,
        own_name: matches.get_one::<String>("tier-name").cloned(),
        seed: *matches.get_one::<u64>("seed").expect("it has a default"),
    };
    Ok(DeviceSettings {
        name: word("name").to_owned(),
        virtual_addresses: matches.get_many::<IpAddr>("vip").into_iter().flatten().copied().collect(),
        targets,
        tier,
        queues: queues(word("queues")).ok_or_else(|| wrong("queues", &"a number, or the first and the last as 0-3"))?,
        mode: word("mode").parse().map_err(|error: String| wrong("mode", &error))?,
        data_path: word("data-path").parse().map_err(|error: String| wrong("data-path", &error))?,
        interfaces: all("interface").cloned().collect(),
        first_mark: number("first-mark").unwrap_or(DeviceSettings::FIRST_MARK_DEFAULT),
        verdicts: if word("verdicts") == "single" { VerdictGrouping::Single } else { VerdictGrouping::Batch },
        queue_length: number("queue-length").unwrap_or(DeviceSettings::QUEUE_LENGTH_DEFAULT),
        balancer,
    })
}

/// Reads `2` or `0-3`.
fn queues(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_defect_leaves_to_the_queues_is_told() {
        let about = |further: &[&str]| {
            let words = ["run", "--vip", "198.18.8.1", "--data-path", "xdp", "--interface", "eth0"];
            let matches = define(Command::new("run")).try_get_matches_from([&words, further].concat()).unwrap();
            about(&settings(&matches).unwrap())
        };
        assert!(about(&["--defect", "tiny-table"]).ends_with("; XDP on eth0 before queue 0"));
        let left = about(&["--defect", "mis-hash=1/2"]);
        let expected = "; XDP on eth0 leaves everything to queue 0, because of defect mis-hash=1/2,";
        assert!(left.ends_with(expected), "{left}");
    }

    #[test]
    fn queues_are_a_number_or_two() {
        assert_eq!((queues("2"), queues("0-3")), (Some(2..=2), Some(0..=3)));
        for wrong in ["", "a", "0-", "1-70000", "0:1"] {
            assert_eq!(queues(wrong), None, "{wrong}");
        }
    }
}
