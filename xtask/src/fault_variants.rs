//! Faults whose place, strength and direction are drawn by a seed, so that rules cannot be fitted to the numbers of one table.

use crate::fault_case::{Case, PlantedFault};

/// The name of a host of the lab `pair`, and the option that makes the other one send to it.
const ENDS: [(&str, &str); 2] = [("a", " --direction down"), ("b", "")];
/// The payload of a datagram unless `--size` says otherwise, in bits.
const DATAGRAM_BITS: u64 = 1400 * 8;

/// Draws one case of each form.
pub(crate) fn draw(seed: u64) -> Vec<Case> {
    let mut rng = fastrand::Rng::with_seed(seed);
    FORMS.iter().map(|form| Case { is_drawn: true, ..form(&mut rng) }).collect()
}

const FORMS: &[fn(&mut fastrand::Rng) -> Case] = &[
    |rng| sender_shaped(rng, "shaper"),
    |rng| sender_shaped(rng, "htb"),
    |rng| {
        let (rate, (host, way)) = (between(rng, 500, 6_000), *rng.choice(&ENDS).expect("two ends"));
        let offered = rate * DATAGRAM_BITS * 2 / 1_000_000;
        fault(&["policer", &format!("rate={rate}")], host, &format!("udp --rate {offered}M{way}"), &["rate-limit"])
    },
    |rng| dropped(rng, "loss", &["loss"]),
    |rng| dropped(rng, "firewall", &["filter-drops"]),
    |rng| {
        let (host, way) = *rng.choice(&ENDS).expect("two ends");
        fault(&["closed-port"], host, &format!("udp --rate {}M{way}", between(rng, 2, 50)), &["no-listener"])
    },
    |rng| {
        let bytes = rng.u64(600..1450);
        fault(&["mtu-hole", &format!("bytes={bytes}")], "b", "tcp", &["path-mtu-black-hole"])
    },
    |rng| {
        let bytes = between(rng, 4_096, 65_536);
        fault(&["receive-window", &format!("bytes={bytes}")], "b", "tcp", &["receive-window"])
    },
    |rng| {
        let flows = rng.u64(100..400);
        fault(&["listen-queue"], "b", &format!("tcp --test crr --flows {flows}"), &["connect-delays"])
    },
    |rng| {
        let (percent, rate) = (rng.u64(1..10), between(rng, 10, 80));
        impaired(&format!("loss={percent}%"), &format!("udp --rate {rate}M{}", way(rng)), &["loss"])
    },
    |rng| {
        let rate = between(rng, 10, 100);
        impaired(&format!("rate={rate}Mbit"), &format!("udp --rate {}M{}", rate * 2, way(rng)), &["rate-limit"])
    },
    |rng| impaired(&format!("outage={}ms", rng.u64(300..900)), &format!("udp --rate 20M{}", way(rng)), &["outage"]),
    |rng| impaired(&format!("corrupt={}%", rng.u64(1..6)), &format!("udp --rate 40M{}", way(rng)), &["bad-checksums"]),
    |rng| impaired(&format!("reorder={}%", rng.u64(1..6)), &format!("udp --rate 40M{}", way(rng)), &["reordering"]),
    |rng| impaired(&format!("duplicate={}%", rng.u64(1..6)), &format!("udp --rate 40M{}", way(rng)), &["duplicates"]),
    |rng| {
        let share = between(rng, 10, 99);
        let device = format!("rst=0.{share:02}%,seed={}", rng.u32(..));
        impaired(&device, &format!("http --connections {}", between(rng, 2, 50)), &["resets"])
    },
    |rng| {
        let (percent, rate) = (rng.u64(2..20), between(rng, 10, 50));
        // What the other direction loses does not concern a stream of datagrams.
        let (direction, way) = *rng.choice(&[("back", ""), ("forward", " --direction down")]).expect("two ways");
        impaired(&format!("loss={percent}%,direction={direction}"), &format!("udp --rate {rate}M{way}"), &[])
    },
    |rng| {
        let (delay, connections) = (between(rng, 5, 200), between(rng, 1, 60));
        let test = format!("http --connections {connections} --delay {delay}ms");
        fault(&[&format!("slow server: {delay} ms")], "", &test, &["server-time"])
    },
    |rng| {
        let delay = between(rng, 1, 50);
        let test = format!("tcp --test rr --delay {delay}ms");
        fault(&[&format!("slow responder: {delay} ms")], "", &test, &["server-time"])
    },
    |rng| {
        let hosts = [("a", ""), ("b", " --direction down")];
        let (host, way) = *rng.choice(&hosts).expect("two hosts");
        fault(&["ttl"], host, &format!("udp --rate {}M{way}", between(rng, 5, 50)), &["time-exceeded"]).behind("router")
    },
    |rng| {
        let test = format!("udp --rate {}M --size {}B{}", between(rng, 5, 50), rng.u64(2_000..8_000), way(rng));
        fault(&["fragment-filter"], "dut", &test, &["fragments-dropped"]).behind("router")
    },
    |rng| {
        let (host, way) = *rng.choice(&ENDS).expect("two ends");
        let bytes = format!("bytes={}", rng.u64(700..1_400));
        fault(&["small-mtu", &bytes], host, &format!("udp --rate {}M{way}", between(rng, 5, 50)), &["mtu-mismatch"])
    },
    |rng| {
        let times = [format!("up=0.{}", rng.u64(4..9)), format!("down=0.{}", rng.u64(11..30))];
        let test = format!("udp --rate {}M{}", between(rng, 5, 50), way(rng));
        fault(&["link-flap", &times[0], &times[1]], if rng.bool() { "a" } else { "b" }, &test, &["link-down"])
    },
    |rng| {
        let cores = format!("cores=0.{}", rng.u64(1..5));
        fault(&["quota", &cores], if rng.bool() { "a" } else { "b" }, &format!("tcp{}", way(rng)), &["cpu-quota"])
    },
    |rng| {
        let share = format!("permille={}", between(rng, 50, 400));
        let test = format!("tcp --test crr --flows {}", between(rng, 10, 100));
        fault(&["syn-loss", &share], "b", &test, &["connect-delays"])
    },
    |rng| {
        let test = format!("tcp --flows {}{}", rng.u64(1..5), way(rng));
        impaired(&format!("rate={}Mbit", between(rng, 10, 200)), &test, &["path-full"])
    },
    |rng| {
        let device = format!("rate={}Mbit,queue={}", between(rng, 10, 50), between(rng, 300, 1_000));
        impaired(&device, "tcp --test loaded", &["latency-under-load"])
    },
    |rng| {
        let stall = format!("{}ms/1s", rng.u64(200..600));
        let test = format!("http --connections {} --stall {stall}", between(rng, 2, 40));
        fault(&[&format!("stalling server: {stall}")], "", &test, &["stall"])
    },
    |rng| fault(&[], "", &format!("udp --rate {}M{}", between(rng, 1, 200), way(rng)), &[]),
    |rng| {
        let device = *rng.choice(&["router", "bridge", "impair"]).expect("three devices");
        fault(&[], "", &format!("udp --rate {}M{}", between(rng, 1, 100), way(rng)), &[]).behind(device)
    },
    |rng| fault(&[], "", &format!("tcp --rate {}M --flows {}", between(rng, 10, 1_000), rng.u64(1..9)), &[]),
    |rng| fault(&[], "", &format!("http --rate {} --connections {}", between(rng, 100, 8_000), rng.u64(5..50)), &[]),
    |rng| impaired(&format!("delay={}ms", between(rng, 1, 60)), &format!("udp --rate 10M{}", way(rng)), &[]),
    |rng| {
        // A shorter queue empties at times, and then its losses hold the requests back.
        let device = format!("rate={}Mbit,queue={}", between(rng, 10, 100), between(rng, 200, 2_000));
        let test = requests(rng);
        // A server that does not tell its own time, and a queue that loses nothing, are told in one sentence, which names both.
        let is_named_with_server = test.starts_with("http");
        let expected: &[&str] = if is_named_with_server { &["path-full", "server-time"] } else { &["path-full"] };
        impaired(&device, &test, expected)
    },
    |rng| {
        let permille = between(rng, 3, 50);
        let device = format!("loss={}.{}%", permille / 10, permille % 10);
        // BBR does not slow down for the losses, so that many connections fill what the device passes.
        impaired(&device, &requests(rng), &["retransmissions", "device-core-full"])
    },
];

/// Requests that wait for one another on each of many connections.
fn requests(rng: &mut fastrand::Rng) -> String {
    let bytes = between(rng, 2_000, 30_000);
    if rng.bool() {
        format!("http --connections {} --size {bytes}", between(rng, 10, 60))
    } else {
        format!("tcp --test rr --flows {} --response {bytes}", between(rng, 8, 64))
    }
}

/// A queueing discipline at the host that sends.
fn sender_shaped(rng: &mut fastrand::Rng, name: &str) -> Case {
    let rate = between(rng, 10, 800);
    let (host, way) = if rng.bool() { ("a", "") } else { ("b", " --direction down") };
    let test = if rng.bool() { format!("tcp --flows {}", rng.u64(1..5)) } else { format!("udp --rate {}M", rate * 2) };
    fault(&[name, &format!("rate={rate}mbit")], host, &format!("{test}{way}"), &["local-shaper"])
}

/// A share of what arrives is dropped at the host that receives, with or without a device between the hosts.
fn dropped(rng: &mut fastrand::Rng, name: &str, expected: &'static [&'static str]) -> Case {
    let (permille, rate) = (between(rng, 5, 200), between(rng, 10, 80));
    let (host, way) = *rng.choice(&ENDS).expect("two ends");
    let case = fault(&[name, &format!("permille={permille}")], host, &format!("udp --rate {rate}M{way}"), expected);
    match *rng.choice(&[None, Some("router"), Some("bridge")]).expect("three ways") {
        Some(device) => case.behind(device),
        None => case,
    }
}

fn impaired(what: &str, test: &str, expected: &'static [&'static str]) -> Case {
    fault(&[&format!("impair:{what}")], "", test, expected)
}

pub(crate) fn fault(words: &[&str], host: &str, test: &str, expected: &'static [&'static str]) -> Case {
    let faults = if words.is_empty() { Vec::new() } else { vec![PlantedFault::new(words, host)] };
    let expected = if expected.is_empty() { Vec::new() } else { vec![expected] };
    Case { faults, test: test.to_owned(), expected, is_drawn: false }
}

/// A direction of the traffic.
fn way(rng: &mut fastrand::Rng) -> &'static str {
    if rng.bool() { "" } else { " --direction down" }
}

/// A number between two others, each order of magnitude as likely as the next.
fn between(rng: &mut fastrand::Rng, least: u32, most: u32) -> u64 {
    let (least, most) = (f64::from(least).ln(), f64::from(most).ln());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between two positive numbers of 32 bits"
    )]
    let number = (least + (most - least) * rng.f64()).exp().round() as u64;
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_cases_again_and_another_one_others() {
        let texts = |seed| draw(seed).iter().map(|case| format!("{} {}", case.name(), case.test)).collect::<Vec<_>>();
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
        assert_eq!(texts(1).len(), FORMS.len());
    }

    #[test]
    fn numbers_stay_between_their_ends() {
        let mut rng = fastrand::Rng::with_seed(1);
        assert!((0..1_000).all(|_| (10..=800).contains(&between(&mut rng, 10, 800))));
    }
}
