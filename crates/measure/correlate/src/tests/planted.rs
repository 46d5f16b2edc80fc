//! Generated sessions with planted tokens: each of them is found, and nothing else is taken.

use proptest::prelude::*;

use super::*;

/// Where an answer has a token.
#[derive(Debug, Clone, Copy)]
enum Source {
    Field,
    Meta,
    Script,
    Json,
    Header,
    Cookie,
}

/// Where a request sends it.
#[derive(Debug, Clone, Copy)]
enum Use {
    Path,
    Query,
    Header,
    Form,
    Json,
}

#[derive(Debug, Clone)]
struct Planted {
    source: Source,
    used: Use,
    /// The number of requests between.
    distance: usize,
}

fn planted() -> impl Strategy<Value = Planted> {
    let sources = [Source::Field, Source::Meta, Source::Script, Source::Json, Source::Header, Source::Cookie];
    let uses = [Use::Path, Use::Query, Use::Header, Use::Form, Use::Json];
    (prop::sample::select(sources.to_vec()), prop::sample::select(uses.to_vec()), 0..4_usize)
        .prop_map(|(source, used, distance)| Planted { source, used, distance })
}

fn random(rng: &mut fastrand::Rng, n: usize) -> String {
    (0..n).map(|_| rng.alphanumeric()).collect()
}

/// Chance: numbers that both recordings have everywhere, and that differ.
fn noise(rng: &mut fastrand::Rng) -> String {
    let cells: Vec<_> = (0..20).map(|_| format!("<td id=\"n{}\">{}</td>", rng.u8(..), rng.u32(..300))).collect();
    cells.concat()
}

fn deliver(exchange: Exchange, source: Source, token: &str, noise: &str) -> Exchange {
    match source {
        Source::Field => exchange.html(&format!("{noise}<input name=\"t\" value=\"{token}\">{noise}")),
        Source::Meta => exchange.html(&format!("<meta name=\"t\" content=\"{token}\">{noise}")),
        Source::Script => exchange.html(&format!("{noise}<script>window.t = \"{token}\";</script>")),
        Source::Json => exchange.answers_json(&json!({ "data": { "t": token }, "noise": noise })),
        Source::Header => exchange.html(noise).sets("X-Token", token),
        Source::Cookie => exchange.html(noise).sets("Set-Cookie", &format!("t={token}; Path=/")),
    }
}

fn session(all: &[Planted], seed: u64) -> Vec<Exchange> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut exchanges = Vec::new();
    for (idx, Planted { source, used, distance }) in all.iter().enumerate() {
        let token = random(&mut rng, 20);
        let noise_here = noise(&mut rng);
        exchanges.push(deliver(Exchange::new("GET", &format!("/from/step{idx}")), *source, &token, &noise_here));
        for n in 0..*distance {
            exchanges.push(Exchange::new("GET", &format!("/between/step{idx}/part{n}")).html(&noise(&mut rng)));
        }
        let path = format!("/to/step{idx}");
        exchanges.push(match used {
            Use::Path => Exchange::new("GET", &format!("{path}/{token}/view")),
            Use::Query => Exchange::new("GET", &format!("{path}?a=1&t={token}")),
            Use::Header => Exchange::new("GET", &path).header("X-Send", &format!("Bearer {token}")),
            Use::Form => Exchange::new("POST", &path).form(&format!("a=1&t={token}")),
            Use::Json => Exchange::new("POST", &path).json(&json!({ "a": 1, "t": token })),
        });
    }
    exchanges
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_planted_tokens_are_found_and_none_by_chance(all in prop::collection::vec(planted(), 1..6), seed in 0..1_000_u64) {
        let correlation = correlated(&session(&all, seed), &session(&all, seed + 5_000)).unwrap();
        let counts = correlation.counts;
        prop_assert_eq!(counts.n_taken, all.len(), "{}", correlation.scenario);
        prop_assert_eq!((counts.n_uses, counts.n_unexplained, counts.n_generated), (all.len(), 0, 0));
        prop_assert!(correlation.typed.is_none() && correlation.suspects.is_empty());
    }

    #[test]
    fn recordings_without_tokens_have_no_takes(all in prop::collection::vec(planted(), 1..4), seed in 0..1_000_u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut noisy = || {
            all.iter().enumerate().map(|(idx, _)| {
                let number = rng.u32(1..1000);
                Exchange::new("GET", &format!("/list/step{idx}?p={number}")).html(&noise(&mut rng))
            }).collect::<Vec<_>>()
        };
        let correlation = correlated(&noisy(), &noisy()).unwrap();
        prop_assert_eq!(correlation.counts.n_taken, 0, "{}", correlation.scenario);
    }
}
