//! Drop-in for wrk: a closed loop over keep-alive connections, with wrk's scripts.
//!
//! Latency is the measured service time. wrk corrects for coordinated omission by adding samples that were never measured; this
//! drop-in does not.

mod options;
mod script;
mod text;
mod units;

use std::fs::File;

use fathom_model::{Settings, units::Nanos};
use options::Options;

use super::closed_loop::{self, ClosedLoop, TargetError, UrlTarget};
use fathom_run::{allow::AllowList, exit::Exit};

/// wrk's exit code for all errors before the run.
const FAILED: Exit = Exit::Code(1);

/// Runs wrk with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let (words, extras) = closed_loop::without_extras(words);
    let reading = options::read(&words);
    if reading.version {
        closed_loop::print_now(&format!("wrk 4.1 drop-in of {} [epoll]\n", fathom_run::registry::TOOL))?;
    }
    let options = match reading.options {
        Ok(options) => options,
        Err(said) => return print_usage(said.as_deref()),
    };
    let Some(target) = UrlTarget::of(&options.url) else {
        return print_usage(Some(&format!("invalid URL: {}", options.url)));
    };
    match closed_loop::check_reachable(&target, allowed) {
        Ok(()) => {}
        Err(TargetError::NotAllowed(user_error)) => return Err(user_error.into()),
        Err(TargetError::Unknown(why)) => {
            eprintln!("unable to resolve {}:{} {why}", target.host, target.service());
            return Ok(FAILED);
        }
        Err(TargetError::Unreachable(_, cause)) => {
            eprintln!(
                "unable to connect to {}:{} {}",
                target.host,
                target.service(),
                closed_loop::c_error_text(&cause)
            );
            return Ok(FAILED);
        }
    }
    let load = load(&options);
    // wrk reports a file that it cannot open once for its main state and once per thread, and continues without it.
    let is_there = |path: &&String| match File::open(path) {
        Ok(_) => true,
        Err(error) => {
            for _ in 0..=options.threads {
                eprintln!("{path}: cannot open {path}: {}", closed_loop::c_error_text(&error));
            }
            false
        }
    };
    let measured = if let Some(path) = options.script.as_ref().filter(is_there) {
        script::measure(&script::with(load, allowed, path, &options.args)?, &options, allowed)?
    } else {
        closed_loop::print_now(&text::head(&options))?;
        let measured = load.measure(None, allowed)?;
        closed_loop::print_now(&text::body(&text::WrkResult::of(measured.record()?, &options), &options))?;
        measured
    };
    extras.print(&measured)?;
    // After ctrl-C, wrk exits normally with the results so far.
    Ok(script::exit(measured.record()?))
}

/// Prints an error to stderr and the usage to stdout, like wrk.
fn print_usage(said: Option<&str>) -> anyhow::Result<Exit> {
    if let Some(said) = said {
        eprintln!("{said}");
    }
    closed_loop::print_now(&options::usage())?;
    Ok(FAILED)
}

fn load(options: &Options) -> ClosedLoop {
    let mut settings = Settings::default()
        .with("url", options.url.clone())
        .with("connections", options.connections.to_string())
        .with("threads", options.workers().to_string())
        .with("insecure", "true")
        .with("timeout", format!("{}s", options.timeout.max(1)));
    if !options.headers.is_empty() {
        settings.set("header", options.headers.join("\n"));
    }
    ClosedLoop {
        title: format!("wrk {}", options.url),
        kind: closed_loop::CLOSED_LOOP_KIND,
        settings,
        duration: Nanos::from_secs(options.duration),
    }
}
