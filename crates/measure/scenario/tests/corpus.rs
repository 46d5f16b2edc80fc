//! The seeds of the fuzz targets: unchanged, truncated, and with each of their bytes changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/cookies.rs"]
mod cookies;
#[path = "../../../../fuzz/checks/json.rs"]
mod json;
#[path = "../../../../fuzz/checks/message.rs"]
mod message;
#[path = "../../../../fuzz/checks/rows.rs"]
mod rows;
#[path = "../../../../fuzz/checks/scenario.rs"]
mod scenario;
#[path = "../../../../fuzz/checks/unpack.rs"]
mod unpack;

fn check(target: &str, bytes: &'static [u8], check: impl Fn(&[u8])) {
    Changes { bytes, n_places_max: 128, longest: 1024 }.check(target, 15, check);
}

#[test]
fn every_seed_of_scenarios_is_refused_or_says_the_same_when_it_is_formatted() {
    check("scenario", b"\n #$\"/\\}:0", scenario::scenario);
}

#[test]
fn every_seed_of_data_sets_is_refused_or_has_all_its_cells() {
    check("rows", b"\n,\"{}[]:\t\xff0", rows::rows);
}

#[test]
fn every_answer_is_looked_into_where_the_engine_says_that_it_is() {
    check("message", b"\r\n: ;,0fg\0", message::message);
}

#[test]
fn every_body_gives_the_same_values_walked_and_as_a_document() {
    check("json", b"{}[]\",:\\0e. \xff", json::json);
}

#[test]
fn every_cookie_goes_only_where_it_may_and_breaks_no_head() {
    check("cookies", b"\n\r;=./ -9\0\xff", cookies::cookies);
}

#[test]
fn every_packed_body_is_unpacked_within_its_bounds_or_refused() {
    check("unpack", b"\0\x01\x03\x7f\x80\xff", unpack::unpack);
}
