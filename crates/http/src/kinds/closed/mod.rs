//! Requests in a closed loop: each connection sends, waits for the whole answer, and sends again.
//!
//! What it reports is *service time*, from the actual send to the last byte: a server that stalls is asked less meanwhile, so
//! this is not what users who come on their own would see. That is the open kind's business.

mod clients;
mod fault;
mod metrics;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
};

use clients::{Clients, Outcome, Target};
use fathom_engine::{Conducted, Crew, Error, Session, Stop, Test, TestKind, Until, Worker};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, ValueKind,
    names::{count, distribution},
    settings::SettingError,
    units::{Bytes, Nanos},
};

use crate::{
    h1::{Method, Request, RequestError},
    names,
    responder::{Attendant, Responder, ResponderOptions, Served, Tally},
    url::{Url, UrlError},
};

/// The key under which a responder tells where it listens.
const ADDRESS: &str = "address";

const OPTIONS: &[OptionDoc] = &[
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, 100_000),
        default: Some("32"),
        help: "connections that are kept busy",
    },
    OptionDoc {
        name: "threads",
        value: ValueKind::Count(1, 1024),
        default: None,
        help: "worker threads of the initiator; one per core of its role unless given",
    },
    OptionDoc {
        name: "url",
        value: ValueKind::Text,
        default: None,
        help: "any server, as http://host:port/path; without it a responder of ours is the target",
    },
    OptionDoc {
        name: "path",
        value: ValueKind::Text,
        default: Some("/"),
        help: "path and query, where the URL has none",
    },
    OptionDoc {
        name: "size",
        value: ValueKind::Size,
        // The welcome page of nginx, against which most figures of this field were made, has this size.
        default: Some("612"),
        help: "size of the body that our responder answers with",
    },
    OptionDoc {
        name: "method",
        value: ValueKind::Choice(&["GET", "HEAD"]),
        default: Some("GET"),
        help: "GET, or HEAD for answers without a body",
    },
    OptionDoc {
        name: "header",
        value: ValueKind::Text,
        default: None,
        help: "header fields of the form Name: value, several separated by line ends",
    },
    OptionDoc {
        name: "requests",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "end after so many requests, if the time is not over before",
    },
    OptionDoc {
        name: "timeout",
        value: ValueKind::Span,
        // Longer than the first three retransmissions of a lost segment (200, 400 and 800 ms) and of a lost SYN (1 and 2 s).
        default: Some("5s"),
        help: "how long a connect, and an answer, may take",
    },
];

/// The counters of the initiator, in the order of [`clients::Counter`].
const COUNTERS: &[&str] = &[
    count::REQUESTS,
    count::BYTES_RECEIVED,
    count::CONNECTIONS,
    names::ATTEMPTS,
    names::ERRORS,
    names::CLOSED_BY_SERVER,
    names::STATUS[0],
    names::STATUS[1],
    names::STATUS[2],
    names::STATUS[3],
    names::STATUS[4],
];

/// The counters of the responder, in the order of [`Served`].
const SERVED: &[&str] = &[count::REQUESTS, count::BYTES_SENT, count::CONNECTIONS, names::REJECTED, names::TIMED_OUT];

/// The kind `http_closed`.
#[derive(Debug, Clone, Copy)]
pub struct Closed;

impl TestKind for Closed {
    fn name(&self) -> &'static str {
        "http_closed"
    }

    fn about(&self) -> &'static str {
        "HTTP/1.1 requests in a closed loop: so many connections, each waiting for its answer"
    }

    fn layer(&self) -> Layer {
        Layer::Http
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text("url").is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let connections = settings.count("connections").unwrap_or(1);
        let plural = if connections == 1 { "" } else { "s" };
        format!("requests, {connections} connection{plural}")
    }

    fn options(&self) -> &'static [OptionDoc] {
        OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(Asking::prepare(role)?),
            Side::Responder => Box::new(Answering::prepare(role)?),
        })
    }
}

/// The initiator, ready to start.
struct Asking {
    address: SocketAddr,
    clients: Vec<Clients>,
    cores: Vec<usize>,
    is_counted: bool,
}

impl Asking {
    fn prepare(role: &Role) -> Result<Self, Error> {
        let settings = &role.settings;
        let (address, host, target) = destination(role)?;
        let method = if settings.text("method").as_deref() == Some("HEAD") { Method::Head } else { Method::Get };
        let fields = settings.text("header").unwrap_or_default();
        let request = Request { method, target: &target, host: &host, fields: &fields };
        let request = request.bytes().map_err(refused_request)?;
        let target = Arc::new(Target {
            address,
            source: role.address.filter(|own| reaches(*own, address.ip())),
            request,
            method,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
            reached: AtomicBool::new(false),
        });
        let n_connections = settings.count("connections").unwrap_or(1);
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        let n_workers = settings.count("threads").unwrap_or(n_cores).min(n_connections);
        let requests = settings.count("requests");
        let clients = (0..n_workers).map(|idx| {
            let share = |whole: u64| whole / n_workers + u64::from(idx < whole % n_workers);
            Clients::new(&target, share(n_connections), requests.map(share))
        });
        let clients = clients.collect::<Result<_, _>>()?;
        Ok(Self { address, clients, cores: role.cores.clone(), is_counted: requests.is_some() })
    }
}

/// Whether packets from an own address can go to `target`: the loopback's reach no other host.
fn reaches(own: IpAddr, target: IpAddr) -> bool {
    own.is_ipv4() == target.is_ipv4() && !own.is_loopback() && !target.is_loopback()
}

/// Where requests go: the address, the value of `Host`, and the path.
fn destination(role: &Role) -> Result<(SocketAddr, String, String), Error> {
    let path = role.settings.text("path").unwrap_or_else(|| "/".to_owned());
    if let Some(url) = role.settings.text("url") {
        let url: Url = url.parse().map_err(refused_url)?;
        let target = if url.target == "/" { path } else { url.target.clone() };
        return Ok((url.resolve().map_err(refused_url)?, url.host_field(), target));
    }
    let address = role.peer.get(ADDRESS).and_then(|address| address.parse().ok());
    let address: SocketAddr = address.ok_or(Error::Endpoint { kind: "http_closed", what: ADDRESS })?;
    Ok((address, address.to_string(), path))
}

fn refused_url(error: UrlError) -> Error {
    let hint = match error {
        UrlError::Resolve { host, cause } => {
            let cause = fathom_sys::Error::new("getaddrinfo", cause);
            return Error::System { what: format!("find the address of `{host}`"), cause };
        }
        UrlError::Tls(_) => "use http://; TLS comes later",
        _ => "write it as http://host:port/path",
    };
    Error::Unsupported { what: error.to_string(), hint: Some(hint.to_owned()) }
}

fn refused_request(error: RequestError) -> Error {
    let (name, expected, given) = match error {
        RequestError::Field(line) => ("header", "lines of the form Name: value", line),
        RequestError::Body(line) => ("header", "no field that announces a body", line),
        RequestError::Target(target) => ("path", "visible ASCII characters that begin with /", target),
    };
    Error::Setting(SettingError::NotAllowed { name: name.to_owned(), expected: expected.to_owned(), given })
}

impl Test for Asking {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let crew = Crew { states: self.clients, counters: COUNTERS, cores: &self.cores, until: Until::PhasesOver };
        let is_counted = self.is_counted;
        let conducted = crew.conduct(session, &mut (), |worker, clients: Clients| clients.run(&worker, is_counted))?;
        let record = record(&conducted, is_counted);
        if record.totals[count::CONNECTIONS] == 0 && session.stop.told() != Stop::Abort {
            return Err(Error::Peer { what: format!("took no connection at {} within the whole trial", self.address) });
        }
        Ok(record)
    }
}

fn record(conducted: &Conducted<Outcome>, is_counted: bool) -> Record {
    let mut record = conducted.record(Side::Initiator);
    let mut all = Outcome::default();
    for outcome in &conducted.workers {
        all.merge(outcome);
    }
    if is_counted {
        // The number ends the trial, not the time: everything counts from the start on.
        record.measured_ns = (Nanos::ZERO, conducted.ended());
    }
    record.totals.insert(names::UNFINISHED.to_owned(), all.n_unfinished);
    record.errors = all.faults.iter().map(|(fault, n)| (fault.to_string(), *n)).collect();
    record.distributions = [
        (distribution::SERVICE_TIME, all.service),
        (distribution::CONNECT_TIME, all.connect),
        (distribution::FIRST_BYTE, all.first_byte),
        (names::WORKER_RATE, conducted.worker_rates().clone()),
    ]
    .map(|(name, histogram)| (name.to_owned(), histogram))
    .into();
    record.notes.extend(status_note(&record));
    record
}

/// Says so when a server answered fast, but not with what was asked for.
fn status_note(record: &Record) -> Option<Note> {
    let others = names::STATUS[1..].iter().map(|name| (name, record.totals[*name])).filter(|(_, n)| *n > 0);
    let others: Vec<String> = others.map(|(name, n)| format!("{n} × {}", name.trim_start_matches("status_"))).collect();
    (!others.is_empty()).then(|| Note {
        id: "http-status".to_owned(),
        text: format!(
            "of {} answers not all were 2xx: {}; they count as answered, and may be cheaper than what was asked for",
            record.totals[count::REQUESTS],
            others.join(", ")
        ),
    })
}

/// The responder, listening.
struct Answering {
    address: SocketAddr,
    attendants: Vec<Attendant>,
    cores: Vec<usize>,
}

impl Answering {
    fn prepare(role: &Role) -> Result<Self, Error> {
        let own = role.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let options = ResponderOptions {
            size: role.settings.size("size").unwrap_or(Bytes(612)),
            workers: role.cores.len().max(1),
            ..ResponderOptions::default()
        };
        let responder = Responder::bind((own, 0).into(), options)?;
        Ok(Self { address: responder.address(), attendants: responder.attendants()?, cores: role.cores.clone() })
    }
}

impl Test for Answering {
    fn endpoints(&self) -> Endpoints {
        Endpoints::from([(ADDRESS.to_owned(), self.address.to_string())])
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let crew = Crew { states: self.attendants, counters: SERVED, cores: &self.cores, until: Until::Told };
        let conducted = crew.conduct(session, &mut (), |worker, attendant: Attendant| attendant.serve(&worker))?;
        Ok(conducted.record(Side::Responder))
    }
}

impl Tally for Worker<'_> {
    fn add(&self, counter: Served, amount: u64) {
        Worker::add(self, counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        Worker::is_over(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_loopback_is_no_source_for_another_host() {
        let [loopback, own, other, six] =
            ["127.0.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|text| text.parse().unwrap());
        assert!(reaches(own, other));
        assert!(!reaches(loopback, other));
        assert!(!reaches(own, loopback));
        assert!(!reaches(own, six));
    }
}
