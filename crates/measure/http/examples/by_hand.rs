//! Runs either end of a load by hand, for comparison with other tools.
//!
//! `by_hand serve PORT [WORKERS] [SIZE]` answers for one minute. `by_hand ask URL SECONDS [OPTION=VALUE …]` sends requests, as an
//! open load when `rate` is among the options.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench that is read by the one who started it")]

use std::thread;

use fathom_engine::{StopFlag, TestKind, TrialContext};
use fathom_http::{HttpClosed, HttpOpen, Responder, ResponderOptions};
use fathom_model::{
    Endpoints, Phases, Record, Role, Settings, Side,
    names::count,
    units::{Nanos, approximate},
};
use fathom_sys::{clock, policy::Policy};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", port] => serve(port, "1", "612"),
        ["serve", port, workers] => serve(port, workers, "612"),
        ["serve", port, workers, size] => serve(port, workers, size),
        ["ask", url, secs, ref options @ ..] => ask(url, secs.parse().unwrap(), options),
        _ => println!("serve PORT [WORKERS] [SIZE] | ask URL SECONDS [OPTION=VALUE …]"),
    }
}

fn serve(port: &str, workers: &str, size: &str) {
    let options = ResponderOptions {
        workers: workers.parse().unwrap(),
        size: size.parse().unwrap(),
        ..ResponderOptions::default()
    };
    let responder = Responder::bind(
        format!("127.0.0.1:{port}").parse().unwrap(),
        &fathom_sys::policy::AllowedPeers::anybody(),
        options,
    )
    .unwrap();
    let stop = StopFlag::default();
    thread::scope(|scope| {
        let running = scope.spawn(|| responder.run(&stop).unwrap());
        clock::sleep_until(clock::now() + Nanos::from_secs(60));
        stop.finish();
        println!("{:?}, processor time {}", running.join().unwrap(), clock::process_cpu());
    });
}

fn ask(url: &str, secs: u64, options: &[&str]) {
    let phases = Phases {
        warmup_max_ns: Nanos::ZERO,
        is_warmup_whole: false,
        measure_ns: Nanos::from_secs(secs),
        interval_ns: Nanos::from_millis(100),
    };
    let options = options.iter().map(|option| option.split_once('=').unwrap());
    let settings =
        options.fold(Settings::default().with("url", url), |settings, (name, value)| settings.with(name, value));
    let kind: &dyn TestKind = if settings.text("rate").is_some() { &HttpOpen } else { &HttpClosed };
    let role = Role {
        test: String::new(),
        kind: kind.name().to_owned(),
        side: Side::Initiator,
        settings: settings.complete(kind.options()).unwrap(),
        phases,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 0,
    };
    let test = kind.prepare(&role, &Policy::anything()).unwrap();
    let record = test.run(&TrialContext::new(clock::now(), phases)).unwrap();
    report(&record);
}

fn report(record: &Record) {
    let (requests, span) = (record.totals[count::REQUESTS], record.measured_ns.1);
    println!(
        "{requests} requests, {:.0} per second, {} of processor time per request",
        approximate(requests) / span.as_secs_f64(),
        record.cpu_ns / requests.max(1),
    );
    for (name, times) in &record.distributions {
        let at = |q| times.quantile(q).map(Nanos).unwrap_or_default();
        let [p50, p90, p99, p999, max] = [0.5, 0.9, 0.99, 0.999, 1.0].map(at);
        println!("  {name} of {}: p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}", times.count());
    }
    println!("  {:?}\n  errors: {:?}", record.totals, record.errors);
    for note in &record.notes {
        println!("  {}: {}", note.id, note.text);
    }
}
