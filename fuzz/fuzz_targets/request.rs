//! Requests to the responder, from bytes that anyone may have sent.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fathom_http::responder::fuzz_request(bytes));
