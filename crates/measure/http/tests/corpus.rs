//! The seeds of the fuzz targets, as they are and with each of their bytes changed.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{fs, path::Path};

use fathom_http::responder::fuzz_request;

#[path = "../../../../fuzz/checks/chunked.rs"]
mod chunked;
#[path = "../../../../fuzz/checks/response.rs"]
mod response;
#[path = "../../../../fuzz/checks/tunnel.rs"]
mod tunnel;

/// What a byte is changed to: what means something somewhere.
const BYTES: &[u8] = b"\0\n\r 0f:;,\xff";
/// Longer seeds are there for their length, which one byte does not change.
const CHANGED_MAX: usize = 512;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect()
}

fn check_all(target: &str, check: impl Fn(&[u8])) {
    let seeds = seeds(target);
    assert!(seeds.len() >= 20, "only {} seeds of {target}", seeds.len());
    for seed in &seeds {
        check(seed);
        for at in 0..if seed.len() > CHANGED_MAX { 0 } else { seed.len() } {
            for byte in BYTES {
                let mut changed = seed.clone();
                changed[at] = *byte;
                check(&changed);
            }
        }
    }
}

#[test]
fn every_seed_of_responses_is_read_the_same_whole_and_in_pieces() {
    check_all("response", response::response);
}

#[test]
fn every_seed_of_chunked_bodies_ends_where_a_decoder_of_lines_ends_it() {
    check_all("chunked", chunked::chunked);
}

#[test]
fn every_seed_of_tunnels_is_understood_the_same_whole_and_byte_by_byte() {
    check_all("tunnel", tunnel::tunnel);
}

#[test]
fn every_seed_of_requests_is_read_the_same_wherever_it_is_cut() {
    check_all("request", fuzz_request);
}
