//! The cost of watching: a large host's counters, and a thousand connections of this one, at ten and at one sample per second.
//!
//! Time passes in the samples only, so a minute of watching takes some seconds.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
};

use fathom_model::{Environment, units::Nanos};
use fathom_sys::clock::thread_cpu;
use fathom_testkit::large_host::{write_interrupts, write_large_host};
use fathom_watch::{JUDGED, LiveReadings, Sampler, Samples, Viewer};

const CONNECTIONS: usize = 1_000;
/// The time that passes.
const SPAN: Nanos = Nanos::from_secs(20);
/// A watch takes at most this share of a core, and ten times that in a build without optimization.
const SHARE_MAX: f64 = if cfg!(debug_assertions) { 0.1 } else { 0.01 };

/// Connections over loopback.
fn connections() -> Vec<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let connect = |_| (TcpStream::connect(here).unwrap(), listener.accept().unwrap().0);
    (0..CONNECTIONS / 2).map(connect).collect()
}

/// The CPU time of each part of watching.
#[derive(Debug, Default)]
struct Cost {
    sampling: Nanos,
    live: Nanos,
    view: Nanos,
    n: u32,
}

fn watched(interval: Nanos, mut one: &TcpStream) -> Cost {
    let root = tempfile::tempdir().unwrap();
    write_large_host(root.path());
    let (mut sampler, mut here) = (Sampler::new(root.path()), Sampler::new("/"));
    let mut live = LiveReadings::new("/", JUDGED, thread_cpu);
    let n_rows = usize::try_from(JUDGED.0 / interval.0).unwrap() + 1;
    let (mut samples, mut own_samples) = (Samples::new(n_rows), Samples::new(n_rows));
    let mut viewer = Viewer::new("large", Environment::default());
    let mut cost = Cost::default();
    let mut now = Nanos::from_secs(1_000);
    let end = now + SPAN;
    while now < end {
        write_interrupts(root.path(), usize::try_from(cost.n).unwrap());
        // While no segment moves, sockets are not read.
        one.write_all(&[0]).unwrap();
        let began = thread_cpu();
        sampler.sample(&mut samples, now);
        here.sample(&mut own_samples, now);
        let sampled = thread_cpu();
        live.read(now, &own_samples);
        let read = thread_cpu();
        let view = viewer.view(&samples, Some(live.tables(&samples)), "2026-11-25T10:00:00Z".to_owned());
        drop(view.map(|view| view.to_line().unwrap()));
        cost.sampling += sampled.since(began);
        cost.live += read.since(sampled);
        cost.view += thread_cpu().since(read);
        cost.n += 1;
        now += interval;
    }
    cost
}

#[test]
fn a_watch_of_a_large_host_takes_little_of_one_core() {
    let open = connections();
    for interval in [Nanos::from_millis(100), Nanos::from_secs(1)] {
        let cost = watched(interval, &open[0].0);
        let share = |part: Nanos| part.as_secs_f64() / SPAN.as_secs_f64();
        let all = cost.sampling + cost.live + cost.view;
        println!(
            "every {interval}: {:.2} % of a core, {} per sample: counters {:.2} %, sockets and programs {:.2} %, view {:.2} %",
            100.0 * share(all),
            Nanos(all.0 / u64::from(cost.n)),
            100.0 * share(cost.sampling),
            100.0 * share(cost.live),
            100.0 * share(cost.view),
        );
        assert!(share(all) < SHARE_MAX, "{cost:?}");
    }
}
