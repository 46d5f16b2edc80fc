//! Runs the seeds of the fuzz targets: unchanged, truncated, and with each byte changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/capture.rs"]
mod capture;
#[path = "../../../../fuzz/checks/frame_line.rs"]
mod frame_line;
#[path = "../../../../fuzz/checks/pktgen.rs"]
mod pktgen;
#[path = "../../../../fuzz/checks/replies.rs"]
mod replies;

const CHANGES: Changes = Changes { bytes: b" /\">?-+09a\\\xff\0\nf:,.\x45", n_places_max: 48, longest: usize::MAX };

#[test]
fn every_seed_of_lines_is_refused_or_makes_frames_that_are_the_same_each_time() {
    CHANGES.check("frame_line", 12, frame_line::frame_line);
}

#[test]
fn every_seed_of_captures_is_refused_or_has_frames_that_can_be_sent() {
    CHANGES.check("capture", 12, capture::capture);
}

#[test]
fn every_seed_of_pktgen_is_printed_as_it_was_understood() {
    CHANGES.check("pktgen", 12, pktgen::pktgen);
}

#[test]
fn every_seed_of_replies_is_read_or_left_alone() {
    CHANGES.check("replies", 12, replies::replies);
}
