//! `fathom simulate conntrack`: the kernel's connection table under a load of connections.

use clap::{ArgMatches, Command};
use fathom_balancer::simulation::{
    SizeSearch,
    conntrack::{
        ConntrackSimulation, ConntrackSimulationError, ConntrackSimulationResult, ConntrackTimeouts, SIZE_MAX,
        expected_entries,
    },
};
use fathom_model::units::{Bytes, Nanos, grouped, percent, rounded};
use fathom_statistics::mean;
use serde::Serialize;

use super::{
    fragments::searched,
    output::{SimulationDocument, table},
    runs::{Progress, Repeats},
    values,
};
use fathom_run::exit::Exit;

const NOTES: &str = "\
Examples:
  fathom simulate conntrack --rate 2k --lifetime 30s --max 65536,262144
  fathom simulate conntrack --rate 2k --lifetime 30s --below 0.01%
  fathom simulate conntrack --rate 5k --unanswered 80% --max 262144        # a SYN flood

The timeouts are those of net.netfilter.nf_conntrack_*; docs/simulate.md says what else the model is.";

/// The smallest table that a search tries.
const SIZE_MIN: u32 = 16;

pub(super) fn define(command: Command) -> Command {
    let value = values::value;
    let span = |name: &'static str, help: &'static str, default: &'static str| {
        value(name, "SPAN", help).value_parser(values::span).default_value(default)
    };
    command
        .arg(
            value("max", "N,N,…", "nf_conntrack_max: the most entries; each is a row")
                .value_parser(values::positive)
                .value_delimiter(',')
                .default_value("262144"),
        )
        .arg(
            value("buckets", "N", "nf_conntrack_buckets; without it, as many as entries")
                .value_parser(values::positive),
        )
        .arg(value("rate", "N", "new connections per second").value_parser(values::rate).default_value("1k"))
        .arg(span("lifetime", "mean time from the first packet to the last", "10s"))
        .arg(span("duration", "virtual time of a load", "600s"))
        .arg(
            value("udp", "PERCENT", "share of UDP flows; the rest is TCP")
                .value_parser(values::percent)
                .default_value("0%"),
        )
        .arg(
            value("unanswered", "PERCENT", "share that nobody answers")
                .value_parser(values::percent)
                .default_value("0%"),
        )
        .arg(span("tcp-time-wait", "nf_conntrack_tcp_timeout_time_wait", "120s"))
        .arg(span("tcp-syn-sent", "nf_conntrack_tcp_timeout_syn_sent", "120s"))
        .arg(span("udp-stream", "nf_conntrack_udp_timeout_stream", "120s"))
        .arg(span("udp-timeout", "nf_conntrack_udp_timeout", "30s"))
        .arg(values::arrivals())
        .arg(values::below())
        .args(values::repeats())
        .args(values::common())
        .after_help(NOTES)
}

#[derive(Debug, Serialize)]
struct ConntrackLoad {
    rate_per_sec: f64,
    lifetime_ns: Nanos,
    duration_ns: Nanos,
    udp_share: f64,
    unanswered_share: f64,
    tcp_time_wait_ns: Nanos,
    tcp_syn_sent_ns: Nanos,
    udp_stream_ns: Nanos,
    udp_timeout_ns: Nanos,
    seed: u64,
    n_repeats: usize,
    /// Little's law, for a table without a limit.
    entries_expected: f64,
}

#[derive(Debug, Serialize)]
struct ConntrackRow {
    max: u32,
    buckets: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    loads: Vec<ConntrackSimulationResult>,
}

#[derive(Debug, Serialize)]
struct ConntrackResults {
    rows: Vec<ConntrackRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    search: Option<SizeSearch>,
}

/// Plays the loads of one size.
fn row(load: &ConntrackSimulation, repeats: Repeats) -> anyhow::Result<ConntrackRow> {
    let play = |seed| ConntrackSimulation { seed, ..*load }.run();
    let loads = repeats.play::<_, ConntrackSimulationError>(load.seed, play)?;
    let losses: Vec<f64> = loads.iter().filter_map(|load| load.loss).collect();
    Ok(ConntrackRow { max: load.n_max, buckets: load.n_buckets, loss: mean(&losses), loads })
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let load = load(matches);
    let repeats = Repeats::of(matches);
    let buckets = matches.get_one::<u32>("buckets").copied();
    let of_size = |n_max: u32| ConntrackSimulation { n_max, n_buckets: buckets.unwrap_or(n_max), ..load };
    let sizes = values::sizes(matches, "max");
    let limit = matches.get_one::<f64>("below").copied();
    for size in sizes.iter().copied().chain(limit.map(|_| SIZE_MIN)) {
        of_size(size).check().map_err(|error| values::refused(&error))?;
    }
    let mut progress = Progress::begin();
    let mut rows = Vec::new();
    for size in sizes {
        rows.push(row(&of_size(size), repeats)?);
        progress.step(|| format!("{} entries", grouped(size.into())));
    }
    let search = limit.map(|limit| {
        SizeSearch::run(
            (SIZE_MIN, SIZE_MAX),
            limit,
            |size| size,
            |size| {
                let loss = row(&of_size(size), repeats)?.loss.unwrap_or_default();
                progress.step(|| format!("{} entries lose {}", grouped(size.into()), values::shown_share(loss)));
                anyhow::Ok(loss)
            },
        )
    });
    let search = search.transpose()?;
    let n = rows.iter().flat_map(|row| &row.loads).map(|load| load.n_connections).sum();
    progress.end(n, "connections");
    let mut text = text(&load, &rows);
    if let Some((limit, search)) = limit.zip(search.as_ref()) {
        text.push_str(&searched(limit, search));
    }
    let settings = settings(&load, repeats);
    SimulationDocument::new("conntrack", settings, ConntrackResults { rows, search }).print(matches, &text)?;
    Ok(Exit::Pass)
}

fn load(matches: &ArgMatches) -> ConntrackSimulation {
    ConntrackSimulation {
        n_max: 1,
        n_buckets: 1,
        rate_per_sec: values::of(matches, "rate"),
        duration: values::of(matches, "duration"),
        arrivals: values::of(matches, "arrivals"),
        lifetime: values::of(matches, "lifetime"),
        udp_share: values::of(matches, "udp"),
        unanswered_share: values::of(matches, "unanswered"),
        timeouts: ConntrackTimeouts {
            tcp_time_wait: values::of(matches, "tcp-time-wait"),
            tcp_syn_sent: values::of(matches, "tcp-syn-sent"),
            udp_stream: values::of(matches, "udp-stream"),
            udp: values::of(matches, "udp-timeout"),
        },
        seed: values::seed(matches),
    }
}

fn settings(load: &ConntrackSimulation, repeats: Repeats) -> ConntrackLoad {
    ConntrackLoad {
        rate_per_sec: load.rate_per_sec,
        lifetime_ns: load.lifetime,
        duration_ns: load.duration,
        udp_share: load.udp_share,
        unanswered_share: load.unanswered_share,
        tcp_time_wait_ns: load.timeouts.tcp_time_wait,
        tcp_syn_sent_ns: load.timeouts.tcp_syn_sent,
        udp_stream_ns: load.timeouts.udp_stream,
        udp_timeout_ns: load.timeouts.udp,
        seed: load.seed,
        n_repeats: repeats.n,
        entries_expected: expected_entries(load),
    }
}

/// Says that the load is too short to fill the table, so that every size found by it is too small.
fn remark(load: &ConntrackSimulation) -> String {
    let needed = load.fill_time();
    if load.duration >= needed {
        return String::new();
    }
    let longer = rounded(Nanos::from_secs(600).max(needed * 4).as_secs_f64());
    format!("the load is shorter than lifetime and timeout together, so the table never fills: --duration {longer}s\n")
}

fn text(load: &ConntrackSimulation, rows: &[ConntrackRow]) -> String {
    let titles =
        ["max", "buckets", "loss", "dropped", "early drops", "most entries", "mean entries", "longest chain", "memory"];
    let cells = |row: &ConntrackRow| {
        let sum = |of: fn(&ConntrackSimulationResult) -> u64| row.loads.iter().map(of).sum::<u64>();
        let most = |of: fn(&ConntrackSimulationResult) -> u64| row.loads.iter().map(of).max().unwrap_or(0);
        let entries: Vec<f64> = row.loads.iter().map(|load| load.n_entries_mean).collect();
        vec![
            grouped(row.max.into()),
            grouped(row.buckets.into()),
            row.loss.map_or_else(|| "–".to_owned(), values::shown_share),
            grouped(sum(|load| load.n_dropped)),
            grouped(sum(|load| load.n_early_dropped)),
            grouped(most(|load| load.n_entries_peak)),
            mean(&entries).map(|entries| grouped(rounded(entries))).unwrap_or_default(),
            grouped(most(|load| load.chain_max)),
            Bytes(most(|load| load.memory_bytes)).to_string(),
        ]
    };
    let table = table(&titles, &rows.iter().map(cells).collect::<Vec<_>>());
    let table = if rows.is_empty() { String::new() } else { format!("\n{table}") };
    format!(
        "connection table: {} connections/s for {}, mean lifetime {}, {} UDP, {} unanswered, seed {}\n\
         without a limit it would have {} entries on average (Little's law)\n{}{}",
        grouped(rounded(load.rate_per_sec)),
        load.duration,
        load.lifetime,
        percent(load.udp_share),
        percent(load.unanswered_share),
        load.seed,
        grouped(rounded(expected_entries(load))),
        remark(load),
        table
    )
}
