//! The face of wrk: closed loop over keep-alive connections, with its scripts.
//!
//! Latency is the service time as it was measured. wrk adds samples that never were (its answer to coordinated omission), which
//! this face does not.

mod options;
mod script;
mod text;
mod units;

use std::fs::File;

use fathom_model::{Settings, units::Nanos};
use options::Options;

use super::load::{self, Load, Refusal, Target};
use crate::{allow::Allowed, exit::Exit};

/// wrk's exit code for whatever is wrong before the run.
const FAILED: Exit = Exit::Of(1);

/// Runs it with wrk's own arguments.
pub(super) fn run(words: &[String], allowed: &Allowed) -> anyhow::Result<Exit> {
    let (words, extras) = load::without_extras(words);
    let reading = options::read(&words);
    if reading.version {
        load::say(&format!("wrk 4.1 face of {} [epoll]\n", crate::wire_up::TOOL))?;
    }
    let options = match reading.asked {
        Ok(options) => options,
        Err(said) => return refuse(said.as_deref()),
    };
    let Some(target) = Target::of(&options.url) else {
        return refuse(Some(&format!("invalid URL: {}", options.url)));
    };
    match load::reach(&target, allowed) {
        Ok(()) => {}
        Err(Refusal::NotAllowed(screen)) => return Err(screen.into()),
        Err(Refusal::Unknown(why)) => {
            eprintln!("unable to resolve {}:{} {why}", target.host, target.service());
            return Ok(FAILED);
        }
        Err(Refusal::Unreachable(_, cause)) => {
            eprintln!("unable to connect to {}:{} {}", target.host, target.service(), load::words(&cause));
            return Ok(FAILED);
        }
    }
    let load = load(&options);
    // wrk says for its main state and each thread what it cannot open, and goes on without it.
    let is_there = |path: &&String| match File::open(path) {
        Ok(_) => true,
        Err(error) => {
            for _ in 0..=options.threads {
                eprintln!("{path}: cannot open {path}: {}", load::words(&error));
            }
            false
        }
    };
    let measured = if let Some(path) = options.script.as_ref().filter(is_there) {
        script::measure(&script::with((load, allowed), path, &options.args)?, &options, allowed)?
    } else {
        load::say(&text::head(&options))?;
        let measured = load.measure(None, allowed)?;
        load::say(&text::body(&text::Outcome::of(measured.record()?, &options), &options))?;
        measured
    };
    extras.add(&measured)?;
    // wrk ends well on ctrl-C, with what it has measured so far.
    Ok(script::exit(measured.record()?))
}

/// Says what is wrong and shows how to use it, as wrk does: the one on stderr, the other on stdout.
fn refuse(said: Option<&str>) -> anyhow::Result<Exit> {
    if let Some(said) = said {
        eprintln!("{said}");
    }
    load::say(&options::usage())?;
    Ok(FAILED)
}

fn load(options: &Options) -> Load {
    let mut settings = Settings::default()
        .with("url", options.url.clone())
        .with("connections", options.connections.to_string())
        .with("threads", options.workers().to_string())
        .with("insecure", "true")
        .with("timeout", format!("{}s", options.timeout.max(1)));
    if !options.headers.is_empty() {
        settings.set("header", options.headers.join("\n"));
    }
    Load {
        title: format!("wrk {}", options.url),
        kind: load::CLOSED,
        settings,
        duration: Nanos::from_secs(options.duration),
    }
}
