//! `fathom simulate capture`: packets of a capture through the reference balancer, in another order.

use std::{
    fmt::Write as _,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Arg, ArgMatches, Command, value_parser};
use fathom_balancer::{
    Balancer, BalancerSettings, DEFAULT_GROUP, Defects, Target,
    fragments::FragmentSettings,
    simulation::capture::{self, CaptureSimulationResult, OrderOperator},
};
use fathom_capture::{CaptureFileError, CapturedFrame, LinkType, NetworkPacket, read_frames};
use fathom_model::units::grouped;
use serde::Serialize;

use super::{output::SimulationDocument, runs::Repeats, values};
use fathom_run::exit::{Exit, UserError};

const NOTES: &str = "\
Examples:
  fathom simulate capture udp.pcap --order shuffle --repeat 100
  fathom simulate capture udp.pcap --order interleave=8,reverse
  fathom simulate capture udp.pcap --order drop=1 --defects fragments-without-ports

The exit code is 10 if a fragment or a packet went elsewhere than its flow.";

/// The packets are kept in memory, and copied for each repetition.
const BYTES_MAX: usize = 64 << 20;

pub(super) fn define(command: Command) -> Command {
    let value = values::value;
    command
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("pcap or pcapng"),
        )
        .arg(
            value(
                "order",
                "WORD,…",
                "shuffle, reverse, rotate=N, interleave=N, drop=N, duplicate=N, one after the other",
            )
            .value_parser(|text: &str| text.parse::<OrderOperator>().map_err(|error| error.to_string()))
            .value_delimiter(','),
        )
        .arg(value("targets", "N", "targets of the balancer").value_parser(values::positive).default_value("10"))
        .arg(
            value("defects", "LIST", "defects of the balancer, such as fragments-without-ports")
                .value_parser(|text: &str| text.parse::<Defects>().map_err(|error| error.to_string())),
        )
        .arg(
            value("stored", "N", "fragments that can wait for their first one")
                .value_parser(values::count)
                .default_value("1024"),
        )
        .args(values::repeats())
        .args(values::common())
        .after_help(NOTES)
}

#[derive(Debug, Serialize)]
struct CaptureSettings {
    file: String,
    order: Vec<String>,
    n_targets: u32,
    defects: String,
    seed: u64,
    n_repeats: usize,
    /// Frames of the file that carry no IP packet.
    n_other_frames: usize,
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let (packets, n_other_frames) = read_packets(path)?;
    let operators: Vec<OrderOperator> = matches.get_many("order").into_iter().flatten().copied().collect();
    capture::ordered_len(packets.len(), &operators).map_err(|error| values::refused(&error))?;
    let defects = matches.get_one::<Defects>("defects").cloned().unwrap_or_default();
    let repeats = Repeats::of(matches);
    let settings = CaptureSettings {
        file: path.display().to_string(),
        order: operators.iter().map(OrderOperator::to_string).collect(),
        n_targets: values::of(matches, "targets"),
        defects: defects.to_string(),
        seed: values::seed(matches),
        n_repeats: repeats.n,
        n_other_frames,
    };
    let fragments =
        FragmentSettings { n_stored: values::of(matches, "stored"), n_shards: 1, ..FragmentSettings::USUAL };
    let results = repeats.play(settings.seed, |seed| {
        let balancer = balancer(
            BalancerSettings { fragments, defects: defects.clone(), seed, ..BalancerSettings::default() },
            settings.n_targets,
        )?;
        capture::run(&balancer, packets.clone(), &operators, seed).map_err(|error| values::refused(&error))
    })?;
    let is_broken = results.iter().any(|result| result.n_misdirected_fragments + result.n_misdirected_packets > 0);
    let text = text(&settings, &results);
    SimulationDocument::new("capture", settings, results).print(matches, &text)?;
    Ok(if is_broken { Exit::Threshold } else { Exit::Pass })
}

/// A balancer with as many targets, t1 to tN, whose marks are their numbers.
fn balancer(settings: BalancerSettings, n_targets: u32) -> Result<Arc<Balancer>, UserError> {
    let balancer = Balancer::new(settings).map_err(|error| values::refused(&error))?;
    for number in 1..=n_targets {
        let target = Target { name: format!("t{number}"), mark: number, weight: 1 };
        balancer.set_target(DEFAULT_GROUP, target).map_err(|error| values::refused(&error))?;
    }
    Ok(Arc::new(balancer))
}

/// Returns the IP packets of a capture, and the number of its other frames.
fn read_packets(path: &Path) -> Result<(Vec<Vec<u8>>, usize), UserError> {
    let unusable =
        |why: String| UserError::new(Exit::Usage, format!("cannot use {}", path.display())).with_line("why", why);
    let file = File::open(path).map_err(|error| unusable(error.to_string()))?;
    let mut taken = TakenPackets::default();
    read_frames(file, |frame| taken.take(frame)).map_err(|error| {
        let refused = unusable(error.to_string());
        match error.hint() {
            Some(hint) => refused.with_line("fix", hint),
            None => refused,
        }
    })?;
    if taken.packets.is_empty() {
        return Err(unusable("none of its frames carries an IP packet".to_owned()));
    }
    Ok((taken.packets, taken.n_other_frames))
}

/// Why a capture cannot be simulated.
#[derive(Debug, thiserror::Error)]
enum UnusableCapture {
    #[error(transparent)]
    File(#[from] CaptureFileError),
    #[error("it was taken on {0}, whose frames are unknown here")]
    LinkType(LinkType),
    #[error("of frame {0} only the beginning was captured")]
    CutOff(u64),
    #[error("it has more than {} MiB of packets", BYTES_MAX >> 20)]
    TooMuch,
}

impl UnusableCapture {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::File(error) => error.hint(),
            Self::LinkType(_) => Some("capture on one Ethernet device: tcpdump -i eth0 -w FILE"),
            Self::CutOff(_) => Some("capture whole frames: tcpdump -s 0 -w FILE"),
            Self::TooMuch => Some("cut it: editcap -r IN OUT 1-10000"),
        }
    }
}

/// The IP packets of a partly read capture.
#[derive(Default)]
struct TakenPackets {
    packets: Vec<Vec<u8>>,
    n_bytes: usize,
    n_other_frames: usize,
}

impl TakenPackets {
    fn take(&mut self, frame: CapturedFrame<'_>) -> Result<(), UnusableCapture> {
        if frame.bytes.len() < frame.original_length {
            return Err(UnusableCapture::CutOff(frame.number));
        }
        match frame.link.packet(frame.bytes) {
            NetworkPacket::Ip(packet) => {
                self.n_bytes += packet.len();
                self.packets.push(packet.to_vec());
            }
            NetworkPacket::Other | NetworkPacket::Cut => self.n_other_frames += 1,
            NetworkPacket::UnknownLink => return Err(UnusableCapture::LinkType(frame.link)),
        }
        if self.n_bytes > BYTES_MAX { Err(UnusableCapture::TooMuch) } else { Ok(()) }
    }
}

fn text(settings: &CaptureSettings, results: &[CaptureSimulationResult]) -> String {
    let sum = |of: fn(&CaptureSimulationResult) -> u64| results.iter().map(of).sum::<u64>();
    let order = if settings.order.is_empty() { "as captured".to_owned() } else { settings.order.join(", ") };
    let times = if settings.n_repeats == 1 { String::new() } else { format!("{} times from ", settings.n_repeats) };
    let mut text = format!(
        "{}: order {order}, {} targets, {}seed {}\n\n",
        settings.file, settings.n_targets, times, settings.seed
    );
    let mut line = |what: &str, n: u64| {
        let _ = writeln!(text, "  {what:<52} {:>12}", grouped(n));
    };
    line("packets", sum(|result| result.n_packets));
    line("fragmented datagrams whose first fragment came", sum(|result| result.n_datagrams));
    line("  all of whose fragments that came were forwarded", sum(|result| result.n_forwarded_datagrams));
    line("fragments that waited for their first one", sum(|result| result.counters.n_held));
    line("dropped packets", sum(|result| result.counters.dropped.values().sum()));
    line("fragments that went elsewhere than their datagram", sum(|result| result.n_misdirected_fragments));
    line("whole packets that went elsewhere than their flow", sum(|result| result.n_misdirected_packets));
    for (what, n) in results.iter().flat_map(|result| &result.unreadable) {
        let _ = writeln!(text, "  unreadable: {what} ({})", grouped(*n));
    }
    if let Some(result) = results.iter().find(|result| !result.examples.is_empty()) {
        let _ = writeln!(text, "\nwith seed {}:", result.seed);
        for example in &result.examples {
            let _ = writeln!(
                text,
                "  packet {} went to t{}, its flow goes to {}",
                example.packet, example.mark, example.expected
            );
        }
    }
    text
}
