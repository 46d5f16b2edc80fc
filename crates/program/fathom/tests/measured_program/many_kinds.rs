//! Every kind of every layer between several hosts: from many to one, from one to many, and between all.

use fathom_model::{
    LinkTrial, Trial,
    names::count::{HOPS, PATH_MTU, REQUESTS},
};

use crate::test_bed::{TestBed, lacks_root, side_by_side};

/// The three forms, each with the number of its pairs of four hosts.
const FORMS: [(&[&str], usize); 3] = [
    (&["--from", "companions", "--to", "sut"], 3),
    (&["--from", "sut", "--to", "companions"], 3),
    (&["--topology", "mesh"], 12),
];

/// The tests that run in all forms.
const KINDS: &[&str] = &[
    "http --connections 12",
    "http --rate 1200 --connections 12",
    "tcp --flows 12 --rate 120M",
    "tcp --direction down --flows 12 --rate 120M",
    "tcp --direction both --flows 12",
    "tcp --test rr --flows 12",
    "tcp --test rr-open --rate 1200 --flows 12",
    "tcp --test crr --flows 12",
    "tcp --test cc --flows 12",
    "tcp --test loaded --direction up --flows 12",
    "udp --rate 12M",
    "udp --direction down --rate 12M",
    "udp --test rr --flows 12",
    "udp --test rr-open --rate 1200 --flows 12",
    "packet --rate 12k",
    "packet --direction down --rate 12k",
    "probe --test rtt --count 3",
    "probe --test mtu",
    "probe --test route",
    "probe --test ports --ports 22,80",
    "probe --test fragments",
];

/// The tests that do not run in a form, with the forms and the words that say why.
const REFUSED: &[(&str, &[usize], &str)] = &[
    ("http --engine xdp --connections 12", &[0, 1, 2], "takes the device of a host for one pair of hosts"),
    ("packet --backend xsk --rate 12k", &[1, 2], "takes the device of a host for one pair of hosts"),
    ("packet --direction both --rate 12k", &[0, 1, 2], "a test in both directions at once, run between two hosts"),
    ("packet --method throughput", &[0, 1, 2], "a benchmark, and a test in both directions at once"),
    ("tcp --test spread", &[0, 1, 2], "the test needs the address that the targets share"),
    ("udp --test continuity", &[0, 1, 2], "the test needs the address that the targets share"),
];

/// Checks that the counters of all pairs add up to those of the sum. Times, their maxima and lengths of paths are no sums.
fn adds_up(test: &str, trial: &Trial) {
    let is_sum = |counter: &str| !counter.contains("_ns") && ![HOPS, PATH_MTU].contains(&counter);
    let mut n_counters = 0;
    for record in trial.records.values() {
        for (counter, total) in record.totals.iter().filter(|(counter, _)| is_sum(counter)) {
            let of_links = trial.links.iter().flat_map(|link| link.records.values());
            let sum: u64 =
                of_links.filter(|part| part.side == record.side).filter_map(|part| part.totals.get(counter)).sum();
            assert_eq!(sum, *total, "{test}: {counter}");
            n_counters += 1;
        }
    }
    assert!(n_counters > 0, "{test}");
}

#[test]
fn every_kind_runs_in_all_forms_with_totals_that_add_up_or_says_why_it_cannot() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("star:4", "kinds");
    let brief = ["--duration", "200ms", "--warmup", "50ms", "--rounds", "1", "--lab", lab.name, "--json"];
    side_by_side(KINDS, |test| {
        // Probes end by themselves.
        let brief = if test.starts_with("probe") { &brief[6..] } else { &brief[..] };
        for (form, n_pairs) in FORMS {
            let words: Vec<&str> = test.split(' ').chain(form.iter().copied()).chain(brief.iter().copied()).collect();
            let ending = stage.fathom(words);
            ending.succeeded_or_judged();
            let run = ending.run();
            for trial in run.tests.iter().flat_map(|test| &test.trials) {
                assert_eq!(trial.links.len(), n_pairs, "{test} {form:?}");
                assert!(trial.links.iter().all(LinkTrial::is_whole), "{test} {form:?}");
                adds_up(test, trial);
            }
            assert!(run.tests.iter().all(|test| !test.trials.is_empty()), "{test} {form:?}");
        }
    });
    for (test, forms, words) in REFUSED {
        for (form, _) in forms.iter().map(|idx| FORMS[*idx]) {
            stage
                .fathom(test.split(' ').chain(form.iter().copied()).chain(["--lab", lab.name, "--quiet"]))
                .refused(2, &[words]);
        }
    }
}

#[test]
fn a_mesh_of_probes_shows_the_host_with_the_small_mtu_and_the_one_that_is_gone() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("star:4", "probes");
    let of_host = |host: &str, words: &[&str]| {
        let exec = ["lab", "exec", lab.name, host, "--", "ip"];
        stage.fathom([&exec[..], words].concat()).succeeded();
    };
    of_host("c2", &["link", "set", "eth0", "mtu", "1200"]);
    let mesh = ["--lab", lab.name, "--topology", "mesh"];
    let ending = stage.fathom([&["probe", "--test", "mtu"][..], &mesh].concat()).succeeded();
    let told = ending.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("to 198.18.0.3 vanish, as do those between 2 other pairs"), "{told}");
    assert_eq!(told.matches("→ c2 1,204 black hole from 1,205 B on").count(), 3, "{told}");
    of_host("c3", &["link", "set", "eth0", "arp", "off"]);
    let words = ["probe", "--test", "rtt", "--count", "3", "--timeout", "200ms"];
    let ending = stage.fathom([&words[..], &["--lab", lab.name, "--from", "sut", "--to", "companions"]].concat());
    let silent = ending.stdout.lines().filter(|line| line.contains("no answer")).collect::<Vec<_>>();
    assert!(matches!(silent.as_slice(), [line] if line.contains("sut → c3")), "{}", ending.stdout);
}

#[test]
fn companions_load_one_server_without_sockets_each_by_its_own_device() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("star:4", "devices");
    let server = lab.start("sut", &["serve", "--only", "http"]);
    server.says("http ");
    let url = "http://198.18.0.1:8080/";
    let words = ["http", url, "--engine", "xdp", "--xdp", "generic", "--lab", lab.name, "--from", "companions"];
    let brief = ["--allow", "198.18.0.1", "--connections", "12", "--duration", "300ms", "--rounds", "1", "--json"];
    let run = stage.fathom([&words[..], &brief].concat()).run();
    let trial = &run.tests[0].trials[0];
    assert_eq!(trial.links.len(), 3);
    for link in &trial.links {
        assert!(link.records[&link.from].totals[REQUESTS] > 0, "{}", link.from);
    }
    adds_up("http_xdp", trial);
}
