//! Servers that are not fathom's, with faults: one in Python (`faulty_server.py`), nginx and iperf with their own limits.
//!
//! They run on host b of a lab. In some tests the client is alone, and only itself and its kernel tell what they do; in the others the counters
//! of host b are read.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;

use crate::{
    fault_case::{Case, PlantedFault},
    fault_variants::fault,
};

/// The port of a server on host b.
const PORT: &str = "8080";
/// Waits until the port listens, for at most five seconds.
const UNTIL_LISTENING: &str =
    "for i in $(seq 100); do ss -Hltn 'sport = :8080' | grep -q . && exit 0; sleep 0.05; done; exit 1";
/// How a test ends that host a runs alone, which needs a permission then.
pub(crate) const ALONE: &str = "--allow 198.18.0.2";
/// How the names in the table begin.
const OF_PYTHON: &str = "Python server: ";
const OF_NGINX: &str = "nginx: ";
const OF_IPERF: &str = "iperf server: ";
const NO_FAULT: &str = "no fault";

/// A name in the table, the fault of the server, the options of the test, and the finding.
type Row = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// The faults of `faulty_server.py`.
const PYTHON: &[Row] = &[
    ("one thread, 5 ms of work", "one-thread", "--connections 10", &["server-saturated"]),
    ("threads under one lock, 5 ms of work", "lock", "--connections 10", &["server-saturated"]),
    ("20 ms of sleep", "sleep", "--connections 10", &["server-time"]),
    ("40 ms of sleep after the head", "pause", "--connections 10", &["server-time"]),
    ("three writes, no TCP_NODELAY", "nagle", "--connections 10", &["delayed-ack"]),
    ("deaf for 300 ms in a second", "deaf", "--connections 10", &["stall"]),
    ("100 ms for 1 in 10", "tail", "--connections 10", &["slow-answers"]),
    ("20 ms for 1 in 2", "half", "--connections 10", &["slow-answers"]),
    ("deaf for 300 ms in a second", "deaf", "--connections 100 --rate 300", &["stall"]),
    ("parts 10 ms apart", "parts", "--connections 10", &["paced-answers"]),
    ("2 requests at once, 20 ms each", "pool", "--connections 20", &["server-time"]),
    ("2 requests at once, 20 ms each", "pool", "--connections 20 --rate 200", &["overload"]),
    ("status 503 for 1 in 20", "failures", "--connections 10", &["server-failures"]),
    ("a reset after 50 requests", "resets", "--connections 10", &["resets"]),
    ("an end within the 20th answer", "short", "--connections 10", &["errors"]),
    ("an accept queue of 1", "queue", "--connections 200", &["connect-delays"]),
    ("64 descriptors", "descriptors", "--connections 200 --timeout 500ms", &["stuck-connections"]),
    (NO_FAULT, "none", "--connections 10 --rate 500", &[]),
];

/// Directives of `location /`, those of `http` before a `|`, and those of `events` before a second one.
const NGINX: &[Row] = &[
    ("limit_rate 200k", "limit_rate 200k;", "--connections 10", &["paced-answers"]),
    (
        "limit_req 100/s",
        "limit_req_zone $binary_remote_addr zone=z:1m rate=100r/s;|limit_req zone=z burst=10 nodelay;",
        "--connections 10",
        &["server-failures"],
    ),
    (
        "limit_req 100/s with status 429",
        "limit_req_zone $binary_remote_addr zone=z:1m rate=100r/s;|limit_req zone=z burst=10 nodelay; limit_req_status 429;",
        "--connections 10",
        &["request-limit"],
    ),
    (
        "limit_req 100/s with a queue",
        "limit_req_zone $binary_remote_addr zone=z:1m rate=100r/s;|limit_req zone=z burst=50;",
        "--connections 10",
        &["server-time"],
    ),
    ("return 403", "return 403;", "--connections 10", &["refused-requests"]),
    // It closes connections, with a reset if it has not read a request.
    ("32 connections", "worker_connections 32;||", "--connections 200", &["resets", "errors"]),
    (NO_FAULT, "", "--connections 10 --rate 1000", &[]),
];

/// Options of `iperf -s`.
const IPERF: &[Row] =
    &[("reads 100 Mbit/s", "-b 100m", "", &["receive-window"]), (NO_FAULT, "-e", " --rate 100M", &[])];

/// Tests of host a alone, with a server in Python and its fault.
const ALONE_WITH_PYTHON: &[Row] = &[
    ("20 ms of sleep", "sleep", "--connections 10", &["server-time"]),
    ("three writes, no TCP_NODELAY", "nagle", "--connections 10", &["delayed-ack"]),
    ("an accept queue of 1", "queue", "--connections 200", &["connect-delays"]),
];

/// Data that comes from a server: a fault of the path or of a host, its host, the path, the file of nginx, and the finding. A large file would
/// outlast the test where a window is small.
type DownloadRow = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);

/// The client is alone.
const DOWNLOADS: &[DownloadRow] = &[
    ("", "", "impair:loss=1%,delay=5ms", "large", &["data-gaps", "device-core-full"]),
    ("", "", "impair:reorder=2%,delay=5ms", "large", &["data-gaps", "device-core-full"]),
    ("", "", "impair:rate=50Mbit,queue=100", "large", &["path-full"]),
    ("", "", "impair:delay=40ms", "large", &["sender-limited"]),
    ("send-buffer", "b", "impair:delay=5ms", "", &["sender-limited"]),
    ("receive-window", "a", "impair:delay=5ms", "", &["receive-window"]),
];

/// The host of the server is read.
const READ_DOWNLOADS: &[DownloadRow] = &[
    ("", "", "impair:loss=1%,delay=5ms", "large", &["retransmissions", "device-core-full"]),
    ("", "", "impair:reorder=2%,delay=5ms", "large", &["data-gaps", "device-core-full"]),
    ("", "", "impair:rate=50Mbit,queue=100", "large", &["path-full"]),
    ("", "", "impair:delay=40ms", "large", &["sender-limited"]),
];

/// The same over a path of 10 ms there and back, where a connection costs a round trip.
const NGINX_FAR: &[Row] =
    &[("keepalive_timeout 0", "keepalive_timeout 0; return 200 short;", "--connections 10", &["round-trip"])];

/// A server that only users have: its limit is felt with a large file alone.
const NGINX_OF_USERS: &[Row] = &[("limit_rate 20m", "limit_rate 20m;", "", &[])];

/// Users who follow a script, with the server: their scenario (a file of `xtask/scenarios`), and the findings that name each cause.
type UsersRow = (&'static str, &'static str, &'static [&'static [&'static str]]);

const USERS: &[UsersRow] = &[
    // Nobody comes to the end.
    ("nginx: no fault", "missing-page.scenario", &[&["step-errors"], &["users-gave-up"]]),
    ("Python server: 20 ms of sleep", "few-places.scenario", &[&["users-late"]]),
    ("Python server: no fault", "few-rows.scenario", &[&["gone-early"]]),
    ("nginx: limit_rate 20m", "slow-step.scenario", &[&["step-time"]]),
];

/// Returns all cases.
///
/// # Errors
/// If a program that they need is missing.
pub(crate) fn all() -> anyhow::Result<Vec<Case>> {
    for program in ["python3", "nginx", "iperf", "ss"] {
        let version = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version
            .with_context(|| format!("{program} is missing (apt-get install python3 nginx-light iperf iproute2)"))?;
    }
    let case = |of: &str, (name, _, options, expected): &Row| {
        let test = format!("http http://198.18.0.2:{PORT}/ {options}");
        fault(&[&format!("{of}{name}")], "", &test, expected)
    };
    let alone = |row: &Row| {
        let case = case(OF_PYTHON, row);
        Case { test: format!("{} {ALONE}", case.test), ..case }
    };
    let python = PYTHON.iter().map(|row| case(OF_PYTHON, row)).chain(ALONE_WITH_PYTHON.iter().map(alone));
    let nginx = NGINX.iter().map(|row| case(OF_NGINX, row));
    let far = NGINX_FAR.iter().map(|row| case(OF_NGINX, row).behind("impair:delay=5ms"));
    let users = USERS.iter().map(|(server, scenario, expected)| Case {
        expected: expected.to_vec(),
        ..fault(&[server], "", &format!("app run {scenario}"), &[])
    });
    Ok(python
        .chain(nginx)
        .chain(far)
        .chain([of_quota(), of_loss()])
        .chain(of_iperf())
        .chain(downloads())
        .chain(users)
        .collect())
}

/// Streams and answers of servers.
fn downloads() -> Vec<Case> {
    let behind = |server: &str, test: &str, (planted, host, device, _, expected): &DownloadRow| {
        let mut case = fault(&[&format!("{server}{NO_FAULT}")], "", test, expected).behind(device);
        let planted = (!planted.is_empty()).then(|| PlantedFault::new(&[planted], host));
        case.faults.extend(planted);
        case
    };
    let of_nginx = |row: &DownloadRow, alone: &str| {
        let test = format!("http http://198.18.0.2:{PORT}/{} --connections 2{alone}", row.3);
        behind(OF_NGINX, &test, row)
    };
    let stream = format!("tcp 198.18.0.2:{PORT} --protocol iperf --direction down {ALONE}");
    let of_iperf = |row: &DownloadRow| behind(OF_IPERF, &stream, row);
    let alone = format!(" {ALONE}");
    let unread = DOWNLOADS.iter().map(|row| of_nginx(row, &alone)).chain(DOWNLOADS.iter().map(of_iperf));
    unread.chain(READ_DOWNLOADS.iter().map(|row| of_nginx(row, ""))).collect()
}

/// Streams to servers of iperf, whose buffers and whose host nobody reads.
fn of_iperf() -> Vec<Case> {
    let case = |(name, _, options, expected): &Row| {
        let test = format!("tcp 198.18.0.2:{PORT} --protocol iperf{options} {ALONE}");
        fault(&[&format!("{OF_IPERF}{name}")], "", &test, expected)
    };
    let with = |planted: &str, host: &str, expected| {
        let mut case = case(&(NO_FAULT, "", "", expected));
        case.faults.push(PlantedFault::new(&[planted], host));
        case
    };
    let buffers = [with("receive-window", "b", &["receive-window"]), with("send-buffer", "a", &["send-buffer"])];
    IPERF.iter().map(case).chain(buffers).collect()
}

/// A server without a fault of its own, in a group with a quota.
fn of_quota() -> Case {
    let server = format!("{OF_NGINX}{NO_FAULT}");
    let mut case = fault(&[&server], "", &format!("http http://198.18.0.2:{PORT}/ --connections 10"), &["cpu-quota"]);
    case.faults.push(PlantedFault::new(&["quota", "cores=0.2"], "b"));
    case
}

/// A server whose data is lost at its client.
fn of_loss() -> Case {
    let server = format!("{OF_NGINX}{NO_FAULT}");
    let test = format!("http http://198.18.0.2:{PORT}/large --connections 2");
    let mut case = fault(&[&server], "", &test, &["retransmissions"]);
    case.faults.push(PlantedFault::new(&["loss", "permille=10"], "a"));
    case
}

/// A server on host b of a lab; ended when dropped.
pub(crate) struct ForeignServer {
    child: Child,
    folder: PathBuf,
}

impl ForeignServer {
    /// Starts the server that a fault names, and waits until it listens; `None` if the fault is of another kind.
    pub(crate) fn start(program: &Path, lab: &str, fault: &str) -> anyhow::Result<Option<Self>> {
        let of = |rows: &[Row], prefix: &str| {
            let name = fault.strip_prefix(prefix)?;
            rows.iter().find(|row| row.0 == name).map(|row| row.1)
        };
        let folder = std::env::temp_dir().join(format!("fathom-server-{}", std::process::id()));
        let words = if let Some(kind) = of(PYTHON, OF_PYTHON) {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/faulty_server.py");
            ["python3", script, kind, PORT].map(str::to_owned).to_vec()
        } else if let Some(directives) = [NGINX, NGINX_FAR, NGINX_OF_USERS].iter().find_map(|rows| of(rows, OF_NGINX)) {
            let file = configure(&folder, directives)?;
            vec!["nginx".to_owned(), "-c".to_owned(), file.display().to_string()]
        } else if let Some(options) = of(IPERF, OF_IPERF) {
            let words = ["iperf", "-s", "-p", PORT].into_iter().chain(options.split(' '));
            words.map(str::to_owned).collect()
        } else {
            return Ok(None);
        };
        let exec = || {
            let mut command = Command::new(program);
            command.args(["lab", "exec", lab, "b", "--"]).stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let child = exec().args(&words).stderr(Stdio::null()).spawn().with_context(|| words.join(" "))?;
        let server = Self { child, folder };
        let listens = exec().args(["sh", "-c", UNTIL_LISTENING]).status()?.success();
        anyhow::ensure!(listens, "{} does not listen on port {PORT}", words.join(" "));
        Ok(Some(server))
    }
}

impl Drop for ForeignServer {
    fn drop(&mut self) {
        // What it has started ends with the lab.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Writes a configuration of nginx with a page of 100 kB and a file of 2 MB, and returns its path.
fn configure(folder: &Path, directives: &str) -> anyhow::Result<PathBuf> {
    let mut parts = directives.rsplit('|');
    let (location, http) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let events = parts.next().unwrap_or("worker_connections 1024;");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("index.html"), "y".repeat(100_000))?;
    fs::write(folder.join("large"), "y".repeat(2_000_000))?;
    let own = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {own}/{name};\n"))
        .concat();
    let text = format!(
        "daemon off;\nuser root;\npid {own}/pid;\nerror_log {own}/errors;\nevents {{ {events} }}\nhttp {{\naccess_log off;\n{temporary}{http}\n\
         server {{ listen {PORT}; keepalive_requests 1000000; root {own}; location / {{ {location} }} }}\n}}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, text)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_of_the_table_is_one_of_the_server() {
        let script = include_str!("faulty_server.py");
        for (name, kind, ..) in PYTHON {
            assert!(script.contains(&format!("\n    \"{kind}\": ")), "{name}");
        }
    }
}
