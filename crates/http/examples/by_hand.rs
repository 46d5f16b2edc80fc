//! Either end of `http_closed` by hand, to set it beside other tools: `by_hand serve PORT [WORKERS] [SIZE]` answers for a
//! minute, `by_hand ask URL CONNECTIONS THREADS SECONDS` asks.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench that is read by the one who started it")]

use std::thread;

use fathom_engine::{Session, StopFlag, TestKind};
use fathom_http::{Closed, Responder, ResponderOptions};
use fathom_model::{
    Endpoints, Phases, Record, Role, Settings, Side,
    names::{count, distribution},
    units::{Nanos, approximate},
};
use fathom_sys::clock;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", port] => serve(port, "1", "612"),
        ["serve", port, workers] => serve(port, workers, "612"),
        ["serve", port, workers, size] => serve(port, workers, size),
        ["ask", url, connections, threads, secs] => ask(url, [connections, threads], secs.parse().unwrap()),
        _ => println!("serve PORT [WORKERS] [SIZE] | ask URL CONNECTIONS THREADS SECONDS"),
    }
}

fn serve(port: &str, workers: &str, size: &str) {
    let options = ResponderOptions {
        workers: workers.parse().unwrap(),
        size: size.parse().unwrap(),
        ..ResponderOptions::default()
    };
    let responder = Responder::bind(format!("127.0.0.1:{port}").parse().unwrap(), options).unwrap();
    let stop = StopFlag::default();
    thread::scope(|scope| {
        let running = scope.spawn(|| responder.run(&stop).unwrap());
        clock::sleep_until(clock::now() + Nanos::from_secs(60));
        stop.finish();
        println!("{:?}, processor time {}", running.join().unwrap(), clock::process_cpu());
    });
}

fn ask(url: &str, [connections, threads]: [&str; 2], secs: u64) {
    let phases =
        Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_secs(secs), interval_ns: Nanos::from_millis(100) };
    let settings = Settings::default().with("url", url).with("connections", connections).with("threads", threads);
    let role = Role {
        test: String::new(),
        kind: Closed.name().to_owned(),
        side: Side::Initiator,
        settings: settings.complete(Closed.options()).unwrap(),
        phases,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        seed: 0,
    };
    let test = Closed.prepare(&role).unwrap();
    let record = test.run(&Session::new(clock::now(), phases)).unwrap();
    report(&record);
}

fn report(record: &Record) {
    let (requests, span) = (record.totals[count::REQUESTS], record.measured_ns.1);
    println!(
        "{requests} requests, {:.0} per second, {} of processor time per request",
        approximate(requests) / span.as_secs_f64(),
        record.cpu_ns / requests.max(1),
    );
    let service = &record.distributions[distribution::SERVICE_TIME];
    for q in [0.5, 0.9, 0.99, 0.999, 1.0] {
        println!("  {q}: {}", service.quantile(q).map(Nanos).unwrap_or_default());
    }
    println!("  errors: {:?}", record.errors);
}
