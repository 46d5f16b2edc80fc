//! The options of the initiator: one table, of which each kind uses its part.

use fathom_engine::pace::Pacing;
use fathom_model::{OptionDoc, Settings, ValueKind};

use crate::{responder, target::options};

/// The most requests in flight on one connection; comparable tools go up to a few dozen.
pub(crate) const PIPELINE_MAX: u64 = 256;

/// The number of worker threads.
pub(crate) const THREADS: OptionDoc = OptionDoc {
    name: "threads",
    value: ValueKind::Count(1, 1024),
    default: None,
    help: "client threads; default: one per core",
};

/// The timeout of connects and answers.
pub(crate) const TIMEOUT: OptionDoc = OptionDoc {
    name: "timeout",
    value: ValueKind::Span,
    // Longer than the first three retransmissions of a lost segment (200, 400 and 800 ms) and of a lost SYN (1 and 2 s).
    default: Some("5s"),
    help: "timeout of a connect and of each response",
};

/// The kernel interface for I/O.
pub(crate) const REACTOR: OptionDoc = OptionDoc {
    name: "reactor",
    value: ValueKind::Choice(&["auto", "io_uring", "epoll"]),
    default: Some("auto"),
    help: "how the kernel serves many connections; auto: io_uring if available, else epoll",
};

/// The number of answers that are handled together.
pub(crate) const BATCH: OptionDoc = OptionDoc {
    name: "batch",
    value: ValueKind::Count(1, 1024),
    default: None,
    help: "responses to collect before processing them (io_uring); default: adapts to the load",
};

/// How long answers may wait for each other.
pub(crate) const BATCH_WAIT: OptionDoc = OptionDoc {
    name: "batch-wait",
    value: ValueKind::Span,
    default: Some("100us"),
    help: "maximum time to wait for a batch of responses",
};

/// How exactly requests keep to the schedule; read by [`pacing`].
pub(crate) const PACING: OptionDoc = OptionDoc {
    name: "pacing",
    value: ValueKind::Choice(&["precise", "cheap"]),
    default: Some("precise"),
    help: "precise: each request at its scheduled time; cheap: requests due within 1 ms together, for less CPU",
};

pub(crate) fn pacing(settings: &Settings) -> Pacing {
    if settings.text(PACING.name).as_deref() == Some("cheap") { Pacing::Cheap } else { Pacing::Precise }
}

/// The options of both kinds, besides those of connections and requests.
const LOAD: [OptionDoc; 7] = [
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, 100_000),
        default: Some("32"),
        help: "number of connections kept busy; with a rate, the maximum number of connections",
    },
    THREADS,
    OptionDoc {
        name: "count",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "stop after this many requests, even if time is left",
    },
    TIMEOUT,
    REACTOR,
    OptionDoc {
        name: "give-up",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "stop a thread after this many failed requests",
    },
    OptionDoc {
        name: "timestamps",
        value: ValueKind::Choice(&["user", "kernel"]),
        default: Some("user"),
        help: "user: latency as the client sees it; kernel: from send timestamp to receive timestamp",
    },
];

/// The options of a closed load only.
const CLOSED: [OptionDoc; 6] = [
    OptionDoc {
        name: "pipeline",
        value: ValueKind::Count(1, PIPELINE_MAX),
        default: Some("1"),
        help: "requests in flight per connection (pipelining)",
    },
    OptionDoc {
        name: "request-log",
        value: ValueKind::File,
        default: None,
        help: "log each response (32 bytes) to FILE.N, one per thread, or to /dev/fd/N",
    },
    OptionDoc {
        name: "keep-answer",
        value: ValueKind::Flag,
        default: None,
        help: "keep the start of the first response in the result",
    },
    OptionDoc {
        name: "leave",
        value: ValueKind::Flag,
        default: None,
        help: "close each connection after its one request is sent, without reading the response",
    },
    BATCH,
    BATCH_WAIT,
];

/// The options of an open load only.
const OPEN: [OptionDoc; 4] = [
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: None,
        help: "requests started per second, whether earlier ones are answered or not",
    },
    OptionDoc {
        name: "profile",
        value: ValueKind::Text,
        default: None,
        help: "rate over time: steps (10k:10s,20k:10s) and ramps (0-20k:30s)",
    },
    OptionDoc {
        name: "arrivals",
        value: ValueKind::Choice(&["constant", "poisson"]),
        default: Some("constant"),
        help: "constant: evenly spaced; poisson: random, like independent users",
    },
    PACING,
];

const N_COMMON: usize =
    LOAD.len() + options::REQUEST.len() + options::CONNECTING.len() + options::TLS.len() + responder::OPTIONS.len();

pub(super) const OF_CLOSED: &[OptionDoc] = &options_table::<{ N_COMMON + CLOSED.len() }>(&CLOSED);
pub(super) const OF_OPEN: &[OptionDoc] = &options_table::<{ N_COMMON + OPEN.len() }>(&OPEN);

/// The table of a kind, with its own options after those of the load.
const fn options_table<const N: usize>(own: &[OptionDoc]) -> [OptionDoc; N] {
    concat_options(&[&LOAD, own, &options::REQUEST, &options::CONNECTING, &options::TLS, &responder::OPTIONS])
}

/// Concatenates tables of options; `N` is the total number of rows.
///
/// # Panics
/// If `N` is another number.
#[must_use]
pub const fn concat_options<const N: usize>(parts: &[&[OptionDoc]]) -> [OptionDoc; N] {
    let mut all = [THREADS; N];
    let (mut part, mut n) = (0, 0);
    while part < parts.len() {
        let mut row = 0;
        while row < parts[part].len() {
            all[n] = parts[part][row];
            n += 1;
            row += 1;
        }
        part += 1;
    }
    assert!(n == N, "a table holds all rows of its parts");
    all
}
