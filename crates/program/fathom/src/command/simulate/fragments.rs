//! `fathom simulate fragments`: the fragment table of the reference balancer under a load of datagrams.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::PossibleValuesParser};
use fathom_balancer::{
    fragments::{Completion, FragmentSettings},
    hash::FragmentHash,
    maglev::is_prime,
    simulation::{
        SizeSearch, TriedSize,
        fragments::{FragmentOrder, FragmentSimulation, FragmentSimulationError, FragmentSimulationResult, IdModel},
    },
};
use fathom_model::units::{Nanos, grouped};
use fathom_statistics::{mean, splitmix};
use serde::Serialize;

use super::{
    output::{SimulationDocument, table},
    runs::{Progress, Repeats},
    values,
};
use fathom_run::exit::Exit;

const NOTES: &str = "\
Examples:
  fathom simulate fragments --rate 10k --slots 1k,2k,4k,8k
  fathom simulate fragments --rate 10k --below 0.1%
  fathom simulate fragments --rate 10k --fragments 3 --order reversed --ids random
  fathom simulate fragments --hash djb2 --sweep 0 --slots 1999,2000 --rate 10k

docs/simulate.md says what each model is.";

/// The smallest table that a search tries: a prime, for Bernstein's hash.
const SLOTS_MIN: u32 = 17;
/// The largest table that a search tries.
const SLOTS_MAX: u32 = 1 << 22;

pub(super) fn define(command: Command) -> Command {
    let choice = |name: &'static str, words: &'static [&'static str], help: &'static str| {
        values::value(name, "WORD", help).value_parser(PossibleValuesParser::new(words)).default_value(words[0])
    };
    let value = values::value;
    command
        .arg(
            value("slots", "N,N,…", "sizes of the hash table; each is a row")
                .value_parser(values::positive)
                .value_delimiter(',')
                .default_value("20011"),
        )
        .arg(
            value("buckets", "N", "entries for slots that are taken; without it, as many as slots")
                .value_parser(values::count),
        )
        .arg(value("ttl", "SPAN", "how long an entry lives").value_parser(values::span).default_value("200ms"))
        .arg(value("rate", "N", "datagrams per second").value_parser(values::rate).default_value("10k"))
        .arg(value("duration", "SPAN", "virtual time of a load").value_parser(values::span).default_value("300s"))
        .arg(choice("ids", &["sequential", "per-flow", "random", "adversarial"], "how senders number datagrams"))
        .arg(value("sources", "N", "addresses that send").value_parser(values::positive).default_value("1"))
        .arg(
            value("fragments", "N", "fragments of each datagram; with 1, first ones alone")
                .value_parser(values::positive)
                .default_value("1"),
        )
        .arg(choice("order", &["forward", "reversed", "shuffled"], "order of the fragments of a datagram"))
        .arg(
            value("stored", "N", "fragments that can wait for their first one")
                .value_parser(values::count)
                .default_value("1024"),
        )
        .arg(choice(
            "hash",
            &["seeded", "mixing", "djb2"],
            "hash of the table: the device's own with or without a seed, or Bernstein's",
        ))
        .arg(
            value(
                "sweep",
                "N",
                "slots searched for old entries when no bucket is left, and for each fragment that waits",
            )
            .value_parser(values::count)
            .default_value("64"),
        )
        .arg(
            Arg::new("free-complete")
                .long("free-complete")
                .help("free the entry of a datagram once all its fragments came")
                .action(ArgAction::SetTrue),
        )
        .arg(values::arrivals())
        .arg(values::below())
        .args(values::repeats())
        .args(values::common())
        .after_help(NOTES)
}

/// The loads of one size.
#[derive(Debug, Serialize)]
struct FragmentRow {
    slots: u32,
    buckets: u32,
    /// The mean over all loads; absent without datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    loads: Vec<FragmentSimulationResult>,
}

#[derive(Debug, Serialize)]
struct FragmentLoad<'a> {
    rate_per_sec: f64,
    ttl_ns: Nanos,
    duration_ns: Nanos,
    ids: &'a str,
    hash: &'a str,
    order: &'a str,
    n_sources: u32,
    n_fragments: u16,
    n_stored: u32,
    n_swept: u32,
    seed: u64,
    n_repeats: usize,
}

#[derive(Debug, Serialize)]
struct FragmentResults {
    rows: Vec<FragmentRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    search: Option<SizeSearch>,
}

/// What the command line asks for.
struct Asked<'a> {
    matches: &'a ArgMatches,
    load: FragmentSimulation,
    buckets: Option<u32>,
    repeats: Repeats,
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let asked = Asked {
        matches,
        load: load(matches),
        buckets: matches.get_one::<u32>("buckets").copied(),
        repeats: Repeats::of(matches),
    };
    let slots = values::sizes(matches, "slots");
    let limit = matches.get_one::<f64>("below").copied();
    for slots in slots.iter().copied().chain(limit.map(|_| SLOTS_MIN)) {
        asked.with_slots(slots).check().map_err(|error| values::refused(&error))?;
    }
    let mut progress = Progress::begin();
    let rows = slots
        .iter()
        .map(|slots| {
            let row = asked.row(*slots)?;
            progress.step(|| format!("{} slots", grouped((*slots).into())));
            Ok(row)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let search = limit.map(|limit| asked.search(limit, &mut progress)).transpose()?;
    let n_inserts = rows.iter().flat_map(|row| &row.loads).map(|load| load.table.n_inserts).sum();
    progress.end(n_inserts, "inserts");
    let text = asked.text(&rows, limit.zip(search.as_ref()));
    SimulationDocument::new("fragments", asked.settings(), FragmentResults { rows, search }).print(matches, &text)?;
    Ok(Exit::Pass)
}

fn word<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.get_one::<String>(name).expect("the option has a default")
}

fn load(matches: &ArgMatches) -> FragmentSimulation {
    let seed = values::seed(matches);
    let hash = word(matches, "hash");
    let n_fragments = values::of::<u32>(matches, "fragments");
    let table = FragmentSettings {
        n_stored: values::of(matches, "stored"),
        ttl: values::of(matches, "ttl"),
        n_swept: values::of(matches, "sweep"),
        completion: if matches.get_flag("free-complete") { Completion::Remove } else { Completion::Keep },
        hash: if hash == "djb2" { FragmentHash::Djb2 } else { FragmentHash::Mixing },
        // The device draws its seed when it starts, so that no sender knows its slots.
        seed: if hash == "seeded" { splitmix(seed, u64::MAX) } else { 0 },
        n_shards: 1,
        ..FragmentSettings::USUAL
    };
    FragmentSimulation {
        table,
        rate_per_sec: values::of(matches, "rate"),
        duration: values::of(matches, "duration"),
        arrivals: values::of(matches, "arrivals"),
        ids: match word(matches, "ids") {
            "per-flow" => IdModel::PerFlow,
            "random" => IdModel::Random,
            "adversarial" => IdModel::Adversarial,
            _ => IdModel::Sequential,
        },
        n_sources: values::of(matches, "sources"),
        n_fragments: u16::try_from(n_fragments).unwrap_or(u16::MAX),
        order: match word(matches, "order") {
            "reversed" => FragmentOrder::Reversed,
            "shuffled" => FragmentOrder::Shuffled,
            _ => FragmentOrder::Forward,
        },
        seed,
    }
}

impl Asked<'_> {
    fn with_slots(&self, n_slots: u32) -> FragmentSimulation {
        let n_buckets = self.buckets.unwrap_or(n_slots);
        FragmentSimulation { table: FragmentSettings { n_slots, n_buckets, ..self.load.table }, ..self.load }
    }

    fn row(&self, slots: u32) -> anyhow::Result<FragmentRow> {
        let load = self.with_slots(slots);
        let loads = self
            .repeats
            .play::<_, FragmentSimulationError>(load.seed, |seed| FragmentSimulation { seed, ..load }.run())?;
        let losses: Vec<f64> = loads.iter().filter_map(|load| load.loss).collect();
        Ok(FragmentRow { slots, buckets: load.table.n_buckets, loss: mean(&losses), loads })
    }

    fn search(&self, limit: f64, progress: &mut Progress) -> anyhow::Result<SizeSearch> {
        // Bernstein's hash needs a prime.
        let is_djb2 = self.load.table.hash == FragmentHash::Djb2;
        let usable = |slots: u32| if is_djb2 { next_prime(slots) } else { slots };
        SizeSearch::run((SLOTS_MIN, SLOTS_MAX), limit, usable, |slots| {
            let loss = self.row(slots)?.loss.unwrap_or_default();
            progress.step(|| format!("{} slots lose {}", grouped(slots.into()), values::shown_share(loss)));
            Ok(loss)
        })
    }

    fn settings(&self) -> FragmentLoad<'_> {
        FragmentLoad {
            rate_per_sec: self.load.rate_per_sec,
            ttl_ns: self.load.table.ttl,
            duration_ns: self.load.duration,
            ids: word(self.matches, "ids"),
            hash: word(self.matches, "hash"),
            order: word(self.matches, "order"),
            n_sources: self.load.n_sources,
            n_fragments: self.load.n_fragments,
            n_stored: self.load.table.n_stored,
            n_swept: self.load.table.n_swept,
            seed: self.load.seed,
            n_repeats: self.repeats.n,
        }
    }

    fn text(&self, rows: &[FragmentRow], search: Option<(f64, &SizeSearch)>) -> String {
        let settings = self.settings();
        let rate = fathom_model::units::rounded(settings.rate_per_sec);
        let mut text = format!(
            "fragment table: {} datagrams/s for {}, entries live {}, ids {}, hash {}, seed {}\n",
            grouped(rate),
            self.load.duration,
            self.load.table.ttl,
            settings.ids,
            settings.hash,
            settings.seed
        );
        let titles = [
            "slots",
            "buckets",
            "loss",
            "most loss",
            "lost",
            "most entries",
            "most buckets",
            "taken slots met",
            "active",
            "old",
        ];
        if !rows.is_empty() {
            let table = table(&titles, &rows.iter().map(|row| self.cells(row)).collect::<Vec<_>>());
            text.push('\n');
            text.push_str(&table);
        }
        if let Some((limit, search)) = search {
            text.push_str(&searched(limit, search));
        }
        text
    }

    fn cells(&self, row: &FragmentRow) -> Vec<String> {
        let sum = |of: fn(&FragmentSimulationResult) -> u64| grouped(row.loads.iter().map(of).sum());
        let most = |of: fn(&FragmentSimulationResult) -> u64| grouped(row.loads.iter().map(of).max().unwrap_or(0));
        let most_loss = row.loads.iter().filter_map(|load| load.loss).fold(0.0, f64::max);
        let is_single = self.repeats.n == 1;
        vec![
            grouped(row.slots.into()),
            grouped(row.buckets.into()),
            row.loss.map_or_else(|| "–".to_owned(), values::shown_share),
            if is_single { String::new() } else { values::shown_share(most_loss) },
            sum(|load| load.n_lost),
            most(|load| load.table.n_entries_peak),
            most(|load| load.table.n_buckets_peak),
            sum(|load| load.table.n_collisions),
            most(|load| load.n_active),
            most(|load| load.n_stale),
        ]
    }
}

/// What a search has found, for all simulations of sizes.
pub(super) fn searched(limit: f64, search: &SizeSearch) -> String {
    let cells = |tried: &TriedSize| vec![grouped(tried.size.into()), values::shown_share(tried.loss)];
    let mut tried = search.tried.clone();
    tried.sort_by_key(|tried| tried.size);
    let found = match search.smallest {
        Some(size) => {
            format!("the smallest size with a loss below {}: {}", values::shown_share(limit), grouped(size.into()))
        }
        None => format!("no size that was tried has a loss below {}", values::shown_share(limit)),
    };
    format!("\n{}\n{found}\n", table(&["tried", "loss"], &tried.iter().map(cells).collect::<Vec<_>>()))
}

/// The next prime from a number on.
fn next_prime(number: u32) -> u32 {
    (number..=u32::MAX).find(|number| is_prime(*number)).unwrap_or(number)
}
