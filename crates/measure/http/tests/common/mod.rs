//! What the tests of both engines share: the reactor they run over, and how their servers read a request.

use std::{cell::Cell, io::Read, net::TcpStream};

use fathom_sys::reactor::uring;

thread_local! {
    /// The reactor of the test that this thread runs.
    static REACTOR: Cell<&'static str> = const { Cell::new("auto") };
}

/// The name that the option `reactor` takes in the test of this thread.
pub(crate) fn reactor() -> &'static str {
    REACTOR.get()
}

/// Runs a test over a reactor; one that the kernel does not give is a skip that is heard of, and a failure in CI.
pub(crate) fn over(reactor: &'static str, test: fn()) {
    if reactor == "io_uring" && fathom_testkit::or_skip(uring::is_allowed(), |_| true).is_none() {
        return;
    }
    REACTOR.set(reactor);
    test();
}

/// Makes tests of functions, each over both reactors.
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

/// Reads one request without a body, byte by byte: the next one may stand behind it.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    Some(String::from_utf8(request).unwrap())
}
