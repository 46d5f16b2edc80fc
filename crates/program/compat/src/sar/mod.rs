//! Drop-in for sar of sysstat 12: counters of this host per interval, in its text.
//!
//! Only what sar reads live is here: the reports of `-u` and `-n`. The text is that of the C locale.

mod options;
mod reports;
mod snapshot;
mod text;

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use fathom_model::units::Nanos;
use fathom_run::{allow::AllowList, exit::Exit};
use fathom_sys::{clock, process::signal};
use jiff::Zoned;

use options::{Answer, Options};
use snapshot::Snapshot;
use text::{Interval, Page};

/// Runs the drop-in.
pub(super) fn run(words: &[String], _: &AllowList) -> anyhow::Result<Exit> {
    let mut options = match options::parse(words) {
        Ok(options) => options,
        Err(Answer::Text(text)) => {
            io::stdout().lock().write_all(text.as_bytes())?;
            return Ok(Exit::Pass);
        }
        Err(Answer::Wrong(text)) => {
            eprint!("{text}");
            return Ok(Exit::Code(1));
        }
    };
    let root = Path::new("/");
    let first = Snapshot::read(root, clock::now());
    if options.is_all {
        leave_out_unknown(&mut options, &first);
    }
    let page = Page::new(&options, root);
    if let Some(why) = page.failure(&first) {
        return Ok(without_counters(&why));
    }
    let mut out = io::stdout().lock();
    write!(out, "{}", head(root))?;
    if options.interval_s == 0 {
        since_start(&page, &first, &mut out)
    } else {
        sampled(&page, &options, &first, &mut out)
    }
}

/// The exit code of sar if sadc, which reads its counters, ends early.
const NO_COUNTERS: u8 = 3;

/// Says why there are no counters.
fn without_counters(why: &str) -> Exit {
    eprintln!("{why}");
    Exit::Code(NO_COUNTERS)
}

/// Leaves the reports out that this kernel does not have, such as those of IPv6, and says so; the first stays if it has none.
fn leave_out_unknown(options: &mut Options, first: &Snapshot) {
    if options.reports.iter().all(|report| first.failure(report).is_some()) {
        return;
    }
    options.reports.retain(|report| {
        let why = first.failure(report);
        if let Some(why) = &why {
            eprintln!("{} is left out: {why}", report.keyword);
        }
        why.is_none()
    });
}

/// Reports the time since the system started, with the counters as they are.
fn since_start(page: &Page<'_>, now: &Snapshot, out: &mut impl Write) -> anyhow::Result<Exit> {
    let time = clock_time();
    // The interfaces are those that are there now.
    write!(out, "{}", page.interval(&Interval { earlier: &now.at_start(), later: now, from: &time, to: &time }, true))?;
    Ok(Exit::Pass)
}

/// Reports interval after interval, then their averages; ctrl-C ends it with the averages too.
fn sampled(page: &Page<'_>, options: &Options, first: &Snapshot, out: &mut impl Write) -> anyhow::Result<Exit> {
    let signals = signal::watch()?;
    let mut gauges = text::GaugeMeans::default();
    let (mut earlier, mut from) = (first.clone(), clock_time());
    let mut due = first.at;
    let mut n = 0;
    while options.count.is_none_or(|count| n < count) {
        due += Nanos::from_secs(options.interval_s);
        if signals.wait_until(due)?.is_some() {
            writeln!(out, "\n")?;
            break;
        }
        let (later, to) = (Snapshot::read(Path::new("/"), clock::now()), clock_time());
        if let Some(why) = page.failure(&later) {
            return Ok(without_counters(&why));
        }
        gauges.add(&later);
        let interval = Interval { earlier: &earlier, later: &later, from: &from, to: &to };
        write!(out, "{}", page.interval(&interval, n == 0))?;
        out.flush()?;
        (earlier, from) = (later, to);
        n += 1;
    }
    if n > 0 {
        write!(out, "{}", page.average(first, &gauges.means(earlier)))?;
    }
    Ok(Exit::Pass)
}

/// Returns the first line: `Linux 6.1.0 (host) \t11/23/26 \t_x86_64_\t(2 CPU)`.
fn head(root: &Path) -> String {
    let content = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let is_iso = std::env::var_os("S_TIME_FORMAT").is_some_and(|format| format == "ISO");
    let date = Zoned::now().strftime(if is_iso { "%Y-%m-%d" } else { "%m/%d/%y" }).to_string();
    let n_cores = snapshot::core_count(root);
    let (kernel, host) = (content("/proc/sys/kernel/osrelease"), content("/proc/sys/kernel/hostname"));
    format!("Linux {kernel} ({host}) \t{date} \t_{}_\t({n_cores} CPU)\n", std::env::consts::ARCH)
}

fn clock_time() -> String {
    Zoned::now().strftime("%H:%M:%S").to_string()
}
