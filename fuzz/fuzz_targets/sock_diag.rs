//! Messages about sockets, as the kernel writes them in answer to a dump.
#![no_main]

#[path = "../checks/sock_diag.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::sock_diag(bytes));
