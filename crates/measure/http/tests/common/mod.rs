//! Shared by the tests of both engines: the reactor under test, and how their servers read a request.

use std::{cell::Cell, io::Read, net::TcpStream};

use fathom_sys::reactor::uring;

thread_local! {
    /// The reactor of the test that this thread runs.
    static REACTOR: Cell<&'static str> = const { Cell::new("auto") };
}

/// The value of the option `reactor` in the test of this thread.
pub(crate) fn reactor() -> &'static str {
    REACTOR.get()
}

/// Runs a test over a reactor. If the kernel does not provide it, the test reports a skip, and fails in CI.
pub(crate) fn over(reactor: &'static str, test: fn()) {
    if reactor == "io_uring" && fathom_testkit::or_skip(uring::is_allowed(), |_| true).is_none() {
        return;
    }
    REACTOR.set(reactor);
    test();
}

/// Turns functions into tests, each over both reactors.
macro_rules! over_both {
    ($($test:ident)*) => {
        mod over_epoll {
            $(#[test] fn $test() { crate::common::over("epoll", super::$test) })*
        }
        mod over_io_uring {
            $(#[test] fn $test() { crate::common::over("io_uring", super::$test) })*
        }
    };
}
pub(crate) use over_both;

/// Reads one request without a body, byte by byte, because the next one may follow it.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    Some(String::from_utf8(request).unwrap())
}
