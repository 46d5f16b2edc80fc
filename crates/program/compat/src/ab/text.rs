//! The output of ab, built from the record, as text or as an HTML table. Pure functions.

use std::{collections::BTreeMap, fmt::Write as _};

use fathom_http::names::facts;
use fathom_model::units::{Nanos, approximate};

use super::{
    options::{HtmlAttributes, Options},
    table::{RequestTimes, TimesRow, millis},
};
use crate::closed_loop;

/// The failed requests by ab's categories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FailedRequests {
    pub(super) connect: u64,
    pub(super) receive: u64,
    /// Responses with a different length than the first one.
    pub(super) length: u64,
    pub(super) exceptions: u64,
}

impl FailedRequests {
    fn total(self) -> u64 {
        self.connect + self.receive + self.length + self.exceptions
    }
}

/// The TLS parameters in ab's format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsDetails {
    /// The version, the cipher, and the bits of the server's key and of the cipher's key.
    pub(super) protocol: String,
    /// The ephemeral key of the server for this connection. Empty if unknown.
    pub(super) temporary_key: String,
}

/// The result of an ab run.
#[derive(Debug, Clone, Default)]
pub(super) struct AbResult {
    pub(super) server: String,
    pub(super) security: Option<TlsDetails>,
    /// The length of the first response.
    pub(super) document_bytes: u64,
    pub(super) took: Nanos,
    pub(super) n_complete: u64,
    pub(super) failed: FailedRequests,
    pub(super) n_write_errors: u64,
    pub(super) n_not_2xx: u64,
    pub(super) n_kept_alive: u64,
    pub(super) n_bytes: u64,
    pub(super) n_bytes_sent: u64,
    pub(super) n_bytes_of_bodies: u64,
    pub(super) times: RequestTimes,
}

/// One line of the result.
enum ResultLine {
    Fact(&'static str, String),
    Failures(FailedRequests),
}

/// Returns the first lines of a result in groups. The text has an empty line between groups.
fn groups(outcome: &AbResult, options: &Options) -> [Vec<ResultLine>; 3] {
    let address = &options.address;
    let length = if options.any_length { "Variable".to_owned() } else { format!("{} bytes", outcome.document_bytes) };
    let mut server = vec![
        ResultLine::Fact("Server Software:", outcome.server.clone()),
        ResultLine::Fact("Server Hostname:", address.host.clone()),
        ResultLine::Fact("Server Port:", address.port.to_string()),
    ];
    if let (Some(security), None) = (&outcome.security, &options.html) {
        server.push(ResultLine::Fact("SSL/TLS Protocol:", security.protocol.clone()));
        let key = Some(&security.temporary_key).filter(|key| !key.is_empty());
        server.extend(key.map(|key| ResultLine::Fact("Server Temp Key:", key.clone())));
        // An IP address is not a valid server name in TLS (RFC 6066 section 3).
        let is_name = address.host.parse::<std::net::IpAddr>().is_err();
        server.extend(is_name.then(|| ResultLine::Fact("TLS Server Name:", address.host.clone())));
    }
    let document =
        vec![ResultLine::Fact("Document Path:", address.path.clone()), ResultLine::Fact("Document Length:", length)];
    let failed = outcome.failed.total();
    let mut result = vec![
        ResultLine::Fact("Concurrency Level:", options.concurrency.to_string()),
        ResultLine::Fact("Time taken for tests:", format!("{:.3} seconds", outcome.took.as_secs_f64())),
        ResultLine::Fact("Complete requests:", outcome.n_complete.to_string()),
        ResultLine::Fact("Failed requests:", failed.to_string()),
    ];
    result.extend((failed > 0).then_some(ResultLine::Failures(outcome.failed)));
    let mut when =
        |is_there: bool, label, value: String| result.extend(is_there.then_some(ResultLine::Fact(label, value)));
    when(outcome.n_write_errors > 0 && options.html.is_none(), "Write errors:", outcome.n_write_errors.to_string());
    when(outcome.n_not_2xx > 0, "Non-2xx responses:", outcome.n_not_2xx.to_string());
    when(options.keep_alive, "Keep-Alive requests:", outcome.n_kept_alive.to_string());
    when(true, "Total transferred:", format!("{} bytes", outcome.n_bytes));
    when(options.body.is_some(), "Total body sent:", outcome.n_bytes_sent.to_string());
    when(true, "HTML transferred:", format!("{} bytes", outcome.n_bytes_of_bodies));
    [server, document, result]
}

/// OpenSSL's names of the offered groups, and their sizes in bits.
const GROUPS: &[(&str, &str)] = &[
    ("X25519", "X25519 253 bits"),
    ("secp256r1", "ECDH prime256v1 256 bits"),
    ("secp384r1", "ECDH secp384r1 384 bits"),
];

impl TlsDetails {
    /// Reads the TLS parameters from the facts of a record. Returns `None` without TLS.
    pub(super) fn of(facts: &BTreeMap<String, String>) -> Option<Self> {
        let fact = |name: &str| facts.get(name).map(String::as_str);
        let (version, cipher) = (fact(facts::TLS_VERSION)?, cipher_name(fact(facts::TLS_CIPHER)?));
        // For a key of a type without a size, OpenSSL reports 0 as well.
        let key_bits = fact(facts::TLS_SERVER_KEY).unwrap_or("0");
        let bits = if cipher.contains("AES_128") || cipher.contains("AES128") { 128 } else { 256 };
        let group = fact(facts::TLS_GROUP);
        let shown = GROUPS.iter().find(|(name, _)| group == Some(*name));
        Some(Self {
            protocol: format!("{version},{cipher},{key_bits},{bits}"),
            temporary_key: shown.map_or_else(String::new, |(_, shown)| (*shown).to_owned()),
        })
    }
}

/// Returns OpenSSL's name of a cipher suite: the standard name since TLS 1.3, its own name before.
fn cipher_name(cipher: &str) -> String {
    if let Some(name) = cipher.strip_prefix("TLS13_") {
        return format!("TLS_{name}");
    }
    let name = cipher.replace("TLS_ECDHE_", "ECDHE-").replace("_WITH_AES_", "-AES").replace("_WITH_", "-");
    name.replace("POLY1305_SHA256", "POLY1305").replace('_', "-")
}

/// Returns KiB per second.
fn kilobytes(bytes: u64, took: Nanos) -> f64 {
    closed_loop::per_second(bytes, took) / 1024.0
}

/// Returns the result as text.
pub(super) fn plain(outcome: &AbResult, options: &Options) -> String {
    let mut text = String::from("\n\n");
    let show = |line| match line {
        ResultLine::Fact(label, value) => format!("{label:<24}{value}\n"),
        ResultLine::Failures(FailedRequests { connect, receive, length, exceptions }) => {
            format!("   (Connect: {connect}, Receive: {receive}, Length: {length}, Exceptions: {exceptions})\n")
        }
    };
    let groups = groups(outcome, options).map(|lines| lines.into_iter().map(show).collect::<String>());
    text += &groups.join("\n");
    let AbResult { took, n_complete, .. } = *outcome;
    if took > Nanos::ZERO {
        let each_ms = took.as_secs_f64() * 1e3 / approximate(n_complete.max(1));
        let at_once_ms = each_ms * approximate(options.concurrency);
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "Requests per second:    {:.2} [#/sec] (mean)", closed_loop::per_second(n_complete, took));
        let _ = writeln!(text, "Time per request:       {at_once_ms:.3} [ms] (mean)");
        let _ = writeln!(text, "Time per request:       {each_ms:.3} [ms] (mean, across all concurrent requests)");
        let received = kilobytes(outcome.n_bytes, took);
        let _ = writeln!(text, "Transfer rate:          {received:.2} [Kbytes/sec] received");
        if options.body.is_some() {
            let sent = kilobytes(outcome.n_bytes_sent, took);
            let _ = writeln!(text, "{:24}{sent:.2} kb/s sent\n{:24}{:.2} kb/s total", "", "", sent + received);
        }
    }
    if outcome.times.total.count() > 0 {
        text += &connection_times(&outcome.times, options.no_deviations);
        if !options.no_percentages && n_complete > 1 {
            text += &percentages(&outcome.times);
        }
    }
    text
}

/// The rows of the connection times, with their names in warnings.
const ROWS: [(&str, &str); 4] = [
    ("Connect:", "the initial connection time"),
    ("Processing:", "the processing time"),
    ("Waiting:", "the waiting time"),
    ("Total:", "the total time"),
];

fn connection_times(times: &RequestTimes, no_deviations: bool) -> String {
    let mut text = String::from("\nConnection Times (ms)\n");
    let rows = times.rows();
    if no_deviations {
        text += "              min   avg   max\n";
        for ((label, _), TimesRow { min, mean, max, .. }) in ROWS.iter().zip(rows) {
            let _ = writeln!(text, "{label:<11} {min:>5} {mean:>5}{max:>5}");
        }
        return text;
    }
    text += "              min  mean[+/-sd] median   max\n";
    for ((label, _), TimesRow { min, mean, deviation, median, max }) in ROWS.iter().zip(rows) {
        let _ = writeln!(text, "{label:<11} {min:>5} {mean:>4} {deviation:>5.1} {median:>6} {max:>7}");
    }
    text + &ROWS.iter().zip(rows).filter_map(|((_, what), row)| row.skew_warning(what)).collect::<String>()
}

fn percentages(times: &RequestTimes) -> String {
    let mut text = String::from("\nPercentage of the requests served within a certain time (ms)\n");
    for (percent, ms) in times.percentages() {
        let _ = writeln!(text, "  {percent}%  {ms:>5}");
    }
    let longest = millis(Nanos(times.total.max().unwrap_or(0)));
    text + &format!(" 100%  {longest:>5} (longest request)\n")
}

/// Returns the result as an HTML table.
pub(super) fn html(outcome: &AbResult, options: &Options, html: &HtmlAttributes) -> String {
    let HtmlAttributes { table, row, cell } = html;
    let fact = |label: &str, value: &str| {
        format!("<tr {row}><th colspan=2 {cell}>{label}</th><td colspan=2 {cell}>{value}</td></tr>\n")
    };
    let more =
        |value: &str| format!("<tr {row}><td colspan=2 {cell}>&nbsp;</td><td colspan=2 {cell}>{value}</td></tr>\n");
    let show = |line| match line {
        ResultLine::Fact(label, value) => fact(label, &value),
        ResultLine::Failures(FailedRequests { connect, length, exceptions, .. }) => format!(
            "<tr {row}><td colspan=4 {cell} >   (Connect: {connect}, Length: {length}, Exceptions: {exceptions})</td></tr>\n"
        ),
    };
    let mut text = format!("\n\n<table {table}>\n");
    text.extend(groups(outcome, options).into_iter().flatten().map(show));
    let took = outcome.took;
    if took > Nanos::ZERO {
        text += &fact("Requests per second:", &format!("{:.2}", closed_loop::per_second(outcome.n_complete, took)));
        let received = kilobytes(outcome.n_bytes, took);
        text += &fact("Transfer rate:", &format!("{received:.2} kb/s received"));
        if options.body.is_some() {
            let sent = kilobytes(outcome.n_bytes_sent, took);
            text += &more(&format!("{sent:.2} kb/s sent"));
            text += &more(&format!("{:.2} kb/s total", sent + received));
        }
    }
    if outcome.times.total.count() > 0 {
        let _ = writeln!(text, "<tr {row}><th {cell} colspan=4>Connection Times (ms)</th></tr>");
        let _ = writeln!(
            text,
            "<tr {row}><th {cell}>&nbsp;</th> <th {cell}>min</th>   <th {cell}>avg</th>   <th {cell}>max</th></tr>"
        );
        let [connect, processing, _, total] = outcome.times.rows();
        for (label, TimesRow { min, mean, max, .. }) in
            [("Connect:", connect), ("Processing:", processing), ("Total:", total)]
        {
            let cells = [min, mean, max].map(|ms| format!("<td {cell}>{ms:>5}</td>")).concat();
            let _ = writeln!(text, "<tr {row}><th {cell}>{label}</th>{cells}</tr>");
        }
    }
    text + "</table>\n"
}

#[cfg(test)]
mod tests {
    use fathom_model::Histogram;

    use super::{super::options, *};

    fn histogram(micros: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for us in micros {
            histogram.record(us * 1_000);
        }
        histogram
    }

    fn options(line: &str) -> Options {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        options::read(&words).1.unwrap()
    }

    /// The values behind an output of ab 2.3 for three requests to nginx.
    fn outcome() -> AbResult {
        AbResult {
            server: "nginx/1.22.1".to_owned(),
            document_bytes: 1_000,
            took: Nanos(16_723_000),
            n_complete: 3,
            n_bytes: 3_702,
            n_bytes_of_bodies: 3_000,
            times: RequestTimes {
                connect: histogram(&[50, 60, 16_200]),
                processing: histogram(&[230, 240, 435]),
                waiting: histogram(&[190, 200, 230]),
                total: histogram(&[285, 300, 16_410]),
            },
            ..AbResult::default()
        }
    }

    const WRITTEN_BY_AB: &str = "

Server Software:        nginx/1.22.1
Server Hostname:        127.0.0.1
Server Port:            18480

Document Path:          /1.html
Document Length:        1000 bytes

Concurrency Level:      1
Time taken for tests:   0.017 seconds
Complete requests:      3
Failed requests:        0
Total transferred:      3702 bytes
HTML transferred:       3000 bytes
Requests per second:    179.39 [#/sec] (mean)
Time per request:       5.574 [ms] (mean)
Time per request:       5.574 [ms] (mean, across all concurrent requests)
Transfer rate:          216.18 [Kbytes/sec] received

Connection Times (ms)
              min  mean[+/-sd] median   max
Connect:        0    5   9.3      8      16
Processing:     0    0   0.1      0       0
Waiting:        0    0   0.0      0       0
Total:          0    6   9.3      8      16

Percentage of the requests served within a certain time (ms)
  50%      0
  66%      0
  75%     16
  80%     16
  90%     16
  95%     16
  98%     16
  99%     16
 100%     16 (longest request)
";

    #[test]
    fn the_numbers_of_a_run_of_ab_give_the_lines_of_ab() {
        let options = options("-n 3 http://127.0.0.1:18480/1.html");
        assert_eq!(plain(&outcome(), &options), WRITTEN_BY_AB);
    }

    #[test]
    fn tls_has_the_names_and_sizes_of_openssl() {
        let cases = [
            (
                ["TLSv1.3", "TLS13_AES_256_GCM_SHA384", "X25519", "2048"],
                ["TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256", "X25519 253 bits"],
            ),
            (
                ["TLSv1.3", "TLS13_CHACHA20_POLY1305_SHA256", "secp384r1", "256"],
                ["TLSv1.3,TLS_CHACHA20_POLY1305_SHA256,256,256", "ECDH secp384r1 384 bits"],
            ),
            (
                ["TLSv1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "secp256r1", "384"],
                ["TLSv1.2,ECDHE-ECDSA-AES128-GCM-SHA256,384,128", "ECDH prime256v1 256 bits"],
            ),
            (
                ["TLSv1.2", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "X25519", "4096"],
                ["TLSv1.2,ECDHE-RSA-CHACHA20-POLY1305,4096,256", "X25519 253 bits"],
            ),
        ];
        for (told, [protocol, temporary_key]) in cases {
            let names = [facts::TLS_VERSION, facts::TLS_CIPHER, facts::TLS_GROUP, facts::TLS_SERVER_KEY];
            let facts = names.into_iter().zip(told).map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
            let expected = TlsDetails { protocol: protocol.to_owned(), temporary_key: temporary_key.to_owned() };
            assert_eq!(TlsDetails::of(&facts), Some(expected));
        }
        assert_eq!(TlsDetails::of(&BTreeMap::new()), None);
    }

    #[test]
    fn what_was_asked_and_what_failed_has_its_lines() {
        let mut options = options("-n 30 -k -l -d -S http://127.0.0.1:18480/post");
        options.body = Some("/dev/null".into());
        let outcome = AbResult {
            security: Some(TlsDetails {
                protocol: "TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256".to_owned(),
                temporary_key: "X25519 253 bits".to_owned(),
            }),
            took: Nanos(16_430_000),
            n_complete: 20,
            failed: FailedRequests { connect: 0, receive: 12, length: 273, exceptions: 6 },
            n_write_errors: 1,
            n_not_2xx: 5,
            n_kept_alive: 20,
            n_bytes: 3_060,
            n_bytes_sent: 3_360,
            n_bytes_of_bodies: 200,
            ..outcome()
        };
        let written = "

Server Software:        nginx/1.22.1
Server Hostname:        127.0.0.1
Server Port:            18480
SSL/TLS Protocol:       TLSv1.3,TLS_AES_256_GCM_SHA384,2048,256
Server Temp Key:        X25519 253 bits

Document Path:          /post
Document Length:        Variable

Concurrency Level:      1
Time taken for tests:   0.016 seconds
Complete requests:      20
Failed requests:        291
   (Connect: 0, Receive: 12, Length: 273, Exceptions: 6)
Write errors:           1
Non-2xx responses:      5
Keep-Alive requests:    20
Total transferred:      3060 bytes
Total body sent:        3360
HTML transferred:       200 bytes
Requests per second:    1217.29 [#/sec] (mean)
Time per request:       0.822 [ms] (mean)
Time per request:       0.822 [ms] (mean, across all concurrent requests)
Transfer rate:          181.88 [Kbytes/sec] received
                        199.71 kb/s sent
                        381.59 kb/s total

Connection Times (ms)
              min   avg   max
Connect:        0     5   16
Processing:     0     0    0
Waiting:        0     0    0
Total:          0     6   16
";
        assert_eq!(plain(&outcome, &options), written);
    }

    const TABLE_WRITTEN_BY_AB: &str = "

<table border=1>
<tr align=x><th colspan=2 class=z>Server Software:</th><td colspan=2 class=z>nginx/1.22.1</td></tr>
<tr align=x><th colspan=2 class=z>Server Hostname:</th><td colspan=2 class=z>127.0.0.1</td></tr>
<tr align=x><th colspan=2 class=z>Server Port:</th><td colspan=2 class=z>18480</td></tr>
<tr align=x><th colspan=2 class=z>Document Path:</th><td colspan=2 class=z>/</td></tr>
<tr align=x><th colspan=2 class=z>Document Length:</th><td colspan=2 class=z>612 bytes</td></tr>
<tr align=x><th colspan=2 class=z>Concurrency Level:</th><td colspan=2 class=z>1</td></tr>
<tr align=x><th colspan=2 class=z>Time taken for tests:</th><td colspan=2 class=z>0.003 seconds</td></tr>
<tr align=x><th colspan=2 class=z>Complete requests:</th><td colspan=2 class=z>10</td></tr>
<tr align=x><th colspan=2 class=z>Failed requests:</th><td colspan=2 class=z>0</td></tr>
<tr align=x><th colspan=2 class=z>Total transferred:</th><td colspan=2 class=z>8450 bytes</td></tr>
<tr align=x><th colspan=2 class=z>HTML transferred:</th><td colspan=2 class=z>6120 bytes</td></tr>
<tr align=x><th colspan=2 class=z>Requests per second:</th><td colspan=2 class=z>2942.04</td></tr>
<tr align=x><th colspan=2 class=z>Transfer rate:</th><td colspan=2 class=z>2427.76 kb/s received</td></tr>
<tr align=x><th class=z colspan=4>Connection Times (ms)</th></tr>
<tr align=x><th class=z>&nbsp;</th> <th class=z>min</th>   <th class=z>avg</th>   <th class=z>max</th></tr>
<tr align=x><th class=z>Connect:</th><td class=z>    0</td><td class=z>    0</td><td class=z>    2</td></tr>
<tr align=x><th class=z>Processing:</th><td class=z>    0</td><td class=z>    0</td><td class=z>    1</td></tr>
<tr align=x><th class=z>Total:</th><td class=z>    0</td><td class=z>    0</td><td class=z>    3</td></tr>
</table>
";

    #[test]
    fn the_table_in_html_is_that_of_ab() {
        let options = options("-w -n 10 -x border=1 -y align=x -z class=z http://127.0.0.1:18480/");
        let ten = |first: u64| histogram(&[first, 40, 40, 40, 40, 40, 40, 40, 40, 40]);
        let outcome = AbResult {
            document_bytes: 612,
            took: Nanos(3_399_000),
            n_complete: 10,
            n_bytes: 8_450,
            n_bytes_of_bodies: 6_120,
            times: RequestTimes { connect: ten(2_000), processing: ten(700), waiting: ten(600), total: ten(2_700) },
            ..outcome()
        };
        let layout = options.html.clone().unwrap();
        assert_eq!(html(&outcome, &options, &layout), TABLE_WRITTEN_BY_AB);
    }
}
