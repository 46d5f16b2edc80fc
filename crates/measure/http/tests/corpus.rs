//! The seeds of the fuzz targets: unchanged, truncated, and with each of their bytes changed.

use fathom_http::responder::fuzz_request;
use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/chunked.rs"]
mod chunked;
#[path = "../../../../fuzz/checks/response.rs"]
mod response;
#[path = "../../../../fuzz/checks/tunnel.rs"]
mod tunnel;

const CHANGES: Changes = Changes { bytes: b"\0\n\r 0f:;,\xff", n_places_max: 256, longest: 512 };

#[test]
fn every_seed_of_responses_is_read_the_same_whole_and_in_pieces() {
    CHANGES.check("response", 20, response::response);
}

#[test]
fn every_seed_of_chunked_bodies_ends_where_a_decoder_of_lines_ends_it() {
    CHANGES.check("chunked", 20, chunked::chunked);
}

#[test]
fn every_seed_of_tunnels_is_understood_the_same_whole_and_byte_by_byte() {
    CHANGES.check("tunnel", 20, tunnel::tunnel);
}

#[test]
fn every_seed_of_requests_is_read_the_same_wherever_it_is_cut() {
    CHANGES.check("request", 20, fuzz_request);
}
