//! Reported latency compared with the responder's settings and with the values that theory predicts.

use fathom_model::{
    Histogram, Part, Record, Run, Side,
    names::{distribution, host},
    units::approximate,
};

use crate::{
    probes::lacks,
    test_bed::{TestBed, is_disturbed, lacks_root},
};

const MILLI: u64 = 1_000_000;

/// Returns the initiator's record of a run in a separate lab.
fn asked(words: &[&str]) -> Record {
    let stage = TestBed::new();
    let common = ["http", "--lab", "pair", "--warmup", "0s", "--rounds", "1", "--json"];
    let run = stage.fathom([&common[..], words].concat()).succeeded().run();
    let records = run.tests.into_iter().next().unwrap().trials.swap_remove(0).records;
    records.into_values().find(|record| record.side == Side::Initiator).unwrap()
}

fn distribution<'a>(record: &'a Record, name: &str) -> &'a Histogram {
    &record.distributions[name]
}

/// Checks a quantile: never earlier than expected, and later only by the delay of a busy machine.
#[track_caller]
fn is_at(histogram: &Histogram, q: f64, expected_ms: u64) {
    let value = histogram.quantile(q).unwrap();
    let (low, high) = (expected_ms * MILLI * 97 / 100, expected_ms * MILLI * 125 / 100 + 3 * MILLI);
    assert!((low..=high).contains(&value), "quantile {q} is {value} ns, and {expected_ms} ms were planted");
}

#[test]
fn delays_of_the_responder_are_the_service_times_of_both_models() {
    if lacks_root() {
        return;
    }
    let delay = ["--delay", "uniform 10ms..30ms", "--connections", "64", "--duration", "2s"];
    for model in [&["--rate", "1k"][..], &[]] {
        let record = asked(&[&delay[..], model].concat());
        let service = distribution(&record, distribution::SERVICE_TIME);
        assert!(service.min().unwrap() >= 10 * MILLI, "an answer came before its time");
        for (q, expected_ms) in [(0.25, 15), (0.5, 20), (0.75, 25)] {
            is_at(service, q, expected_ms);
        }
    }
}

/// Once per second, no response is sent for 200 ms.
const STALL: [&str; 4] = ["--stall", "200ms/1s", "--duration", "6s"];

#[test]
fn an_open_load_sees_a_stall_as_users_who_come_on_their_own_do() {
    if lacks_root() {
        return;
    }
    let record = asked(&[&STALL[..], &["--rate", "1k", "--connections", "500"]].concat());
    let response = distribution(&record, distribution::RESPONSE_TIME);
    // Requests during a stall wait for its end, so their times are spread evenly between zero and its length. The trial
    // begins between two stalls, so it contains five whole stalls and a part of one.
    for threshold_ms in [20, 65, 110, 155] {
        // A machine without time makes other requests wait too, though hardly that long, and makes a stall longer. Nothing makes one shorter.
        let share = approximate(response.count_above(threshold_ms * MILLI)) / approximate(response.count());
        let of_a_stall = approximate(200 - threshold_ms) / 1000.0;
        assert!(
            (0.95 * 5.0 / 6.0 * of_a_stall..1.25 * of_a_stall + 0.01).contains(&share),
            "{share} took more than {threshold_ms} ms"
        );
    }
    // The last of them may be late on a busy machine, but never early.
    assert!(response.max().unwrap() > 190 * MILLI);
}

#[test]
fn a_closed_loop_sees_each_stall_once_per_connection() {
    if lacks_root() {
        return;
    }
    let record = asked(&[&STALL[..], &["--connections", "4", "--threads", "1"]].concat());
    let service = distribution(&record, distribution::SERVICE_TIME);
    // A client that waits for a response sends nothing meanwhile: five or six stalls on four connections.
    let n_stalled = service.count_above(190 * MILLI);
    assert!((20..=24).contains(&n_stalled), "{n_stalled} requests were stalled");
    assert!(service.quantile(0.99).unwrap() < 20 * MILLI, "most requests know nothing of the stalls");
}

/// Returns the length of a part of a usual unit of a run with one test.
fn part(run: &Run, part: Part, side: Option<Side>) -> u64 {
    let anatomy = run.tests[0].anatomy.as_ref().expect("transactions are sampled");
    assert!(anatomy.n_units >= 20, "{anatomy:?}");
    let found = anatomy.parts.iter().find(|found| found.part == part && found.side == side);
    found.unwrap_or_else(|| panic!("both ends tell their parts: {anatomy:?}")).median_ns.0
}

const ROUND: [&str; 5] = ["--rounds", "1", "--duration", "1500ms", "--json"];

#[test]
fn a_delay_of_the_path_is_found_in_the_path_and_nowhere_else() {
    if lacks_root() {
        return;
    }
    for (layer, lab) in [("tcp", "pair"), ("udp", "pair"), ("udp", "pair6")] {
        let words = [layer, "--test", "rr", "--lab", lab, "--device", "impair:delay=3ms"];
        let run = TestBed::new().fathom([&words[..], &ROUND].concat()).succeeded().run();
        let path = part(&run, Part::Path, None);
        assert!((6 * MILLI..8 * MILLI).contains(&path), "{layer} {lab}: {:?}", run.tests[0].anatomy);
        for side in [Side::Initiator, Side::Responder] {
            let own = [Part::SendCall, Part::LocalQueue].map(|own| part(&run, own, Some(side)));
            assert!(own.into_iter().all(|own| own < MILLI), "{layer} {lab}: {:?}", run.tests[0].anatomy);
        }
    }
}

#[test]
fn a_request_tells_the_path_from_the_server() {
    if lacks_root() {
        return;
    }
    let of = |words: &[&str]| {
        let run = TestBed::new().fathom([words, &["--lab", "pair"], &ROUND].concat()).succeeded().run();
        [Part::BaselineRtt, Part::Server].map(|wanted| part(&run, wanted, None))
    };
    for test in [["http", "--connections", "1"], ["tcp", "--test", "crr"]] {
        let [path, server] = of(&[&test[..], &["--device", "impair:delay=3ms"]].concat());
        assert!((6 * MILLI..7 * MILLI).contains(&path) && server < 3 * MILLI, "the path is slow: {path} and {server}");
    }
    let [path, server] = of(&["http", "--connections", "1", "--delay", "5ms"]);
    assert!(path < MILLI && (5 * MILLI..8 * MILLI).contains(&server), "the server is slow: {path} and {server}");
}

/// Returns the length of the path of a usual transaction through a device, in microseconds.
fn path_through(device: &str) -> (f64, Run) {
    let words = ["tcp", "--test", "rr", "--lab", "pair", "--device", device];
    let run = TestBed::new().fathom([&words[..], &ROUND].concat()).succeeded().run();
    (approximate(part(&run, Part::Path, None)) / 1e3, run)
}

/// Returns the growth of a counter of the device, over both directions.
fn of_device(run: &Run, counter: &str) -> u64 {
    let hosts = run.tests[0].trials.iter().flat_map(|trial| trial.hosts.values());
    hosts.flat_map(|host| host.series_of(counter)).map(fathom_model::record::Series::growth).sum()
}

/// Returns how many microseconds the path is long with a delay of 250 and of 300 µs in one direction, in two runs each, and how many nanoseconds too late
/// the device let a packet go on average in the worst of them. `None` if one of the runs says that it was disturbed.
///
/// Between 50 and 100 µs of delay the path of a virtual machine grew by 39 to 83, between these by 47 to 54. Its hypervisor may poll for a while
/// before an idle core sleeps (`halt_poll_ns` of KVM, 200 µs by default), so that only the longer of two short waits pays for the sleep.
fn paths_of_both_delays() -> Option<([[f64; 2]; 2], u64)> {
    let (short, long) = ("impair:delay=250us,direction=forward", "impair:delay=300us,direction=forward");
    let runs = [short, long, long, short].map(path_through);
    if runs.iter().any(|(_, run)| is_disturbed(run)) {
        return None;
    }
    let late = |(_, run): &(_, Run)| of_device(run, host::IMPAIR_LATE_NS) / of_device(run, host::IMPAIR_DELAYED).max(1);
    let latest = runs.iter().map(late).max().unwrap();
    let [first, second, third, fourth] = runs.each_ref().map(|(path, _)| *path);
    Some(([[first, fourth], [second, third]], latest))
}

/// On a machine at rest the path grows by 50 µs to within 5. What takes a core away for moments makes single runs longer, and a core that is fast for a
/// while makes them shorter, so the median of all differences between two runs is judged (Hodges and Lehmann).
#[test]
fn fifty_microseconds_of_one_way_make_the_path_longer_by_as_much() {
    const ATTEMPTS: usize = 5;
    const BLOCKS: usize = 3;
    if lacks_root() {
        return;
    }
    // A disturbed block is not repeated until it passes: it is not judged at all.
    let blocks: Vec<_> = (0..ATTEMPTS).filter_map(|_| paths_of_both_delays()).take(BLOCKS).collect();
    if blocks.len() < BLOCKS {
        return fathom_testkit::skip_everywhere("too many runs were disturbed");
    }
    // A hypervisor that takes a core away for a while makes the device late in one block.
    let mut late: Vec<u64> = blocks.iter().map(|(_, late)| *late).collect();
    late.sort_unstable();
    assert!(late[late.len() / 2] < 20_000, "the device kept its delay late: {late:?} ns");
    let [short, long] =
        [0, 1].map(|delay| blocks.iter().flat_map(move |(block, _)| block[delay]).collect::<Vec<f64>>());
    let mut growths: Vec<f64> = long.iter().flat_map(|long| short.iter().map(move |short| long - short)).collect();
    growths.sort_by(f64::total_cmp);
    let growth = growths[growths.len() / 2];
    assert!((35.0..65.0).contains(&growth), "{growth} µs: {short:?} and {long:?}");
}

#[test]
fn fifty_microseconds_in_the_responder_are_in_its_part() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let lab = stage.lab("responder");
    let [short, long] = ["50us", "100us"].map(|delay| {
        let words = [&["tcp", "--test", "rr", "--lab", lab.name, "--delay", delay][..], &ROUND].concat();
        part(&stage.fathom(words).succeeded().run(), Part::Program, Some(Side::Responder))
    });
    assert!((50_000..55_000).contains(&short), "{short} ns for 50 µs");
    assert!((45_000..55_000).contains(&long.abs_diff(short)), "from {short} to {long} ns");
}

#[test]
fn a_shaper_is_found_in_the_queue_of_the_host_that_has_it() {
    if lacks_root() || lacks(&["tc"]) {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("shaped");
    for (host, side, other) in [("a", Side::Initiator, Side::Responder), ("b", Side::Responder, Side::Initiator)] {
        stage.fathom(["lab", "fault", "add", lab.name, "shaper", "rate=1mbit", "--host", host]).succeeded();
        // Each message waits for its own length: 1,400 bytes and their headers are 11.5 ms. The first ones use the burst up.
        let sizes = ["--request", "1400", "--response", "1400", "--warmup", "2s"];
        let words = [&["udp", "--test", "rr", "--lab", lab.name][..], &ROUND, &sizes].concat();
        let run = stage.fathom(words).succeeded().run();
        let (queue, free) = (part(&run, Part::LocalQueue, Some(side)), part(&run, Part::LocalQueue, Some(other)));
        assert!((10 * MILLI..13 * MILLI).contains(&queue) && free < MILLI, "{host}: {:?}", run.tests[0].anatomy);
        stage.fathom(["lab", "fault", "remove", lab.name, "shaper"]).succeeded();
    }
}
