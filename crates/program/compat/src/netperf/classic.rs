//! The text of the tests by name, as netperf 2.7 prints it.

use std::fmt::Write as _;

use fathom_model::units::approximate;

use super::{
    options::{Options, TestName},
    report::TestReport,
    units::ThroughputUnit,
};

/// The letter of `/proc/stat` as the source of CPU times, and that of no source.
const CPU_METHODS: [char; 2] = ['U', 'S'];
/// The alignment of buffers that netperf reports by default.
const ALIGNMENT: u32 = 8;

/// Returns the title of a test by name.
pub(super) fn title(test: TestName) -> &'static str {
    match test {
        TestName::TcpStream | TestName::Omni => "MIGRATED TCP STREAM TEST",
        TestName::TcpMaerts => "MIGRATED TCP MAERTS TEST",
        TestName::TcpSendfile => "TCP SENDFILE TEST",
        TestName::TcpRr => "MIGRATED TCP REQUEST/RESPONSE TEST",
        TestName::TcpCrr => "MIGRATED TCP Connect/Request/Response TEST",
        TestName::UdpStream => "MIGRATED UDP STREAM TEST",
        TestName::UdpRr => "MIGRATED UDP REQUEST/RESPONSE TEST",
    }
}

/// The letter of a CPU measurement in headers.
pub(super) fn cpu_method(is_measured: bool) -> char {
    CPU_METHODS[usize::from(is_measured)]
}

/// Returns the result of a test by name.
pub(super) fn result(options: &Options, report: &TestReport) -> String {
    let mut out = String::new();
    if report.is_too_wide() {
        out += &warning(report);
    }
    let body = match options.test {
        TestName::TcpStream | TestName::TcpMaerts | TestName::TcpSendfile | TestName::Omni => stream(options, report),
        TestName::TcpRr | TestName::TcpCrr | TestName::UdpRr => transactions(options, report),
        TestName::UdpStream => datagrams(options, report),
    };
    out + &body
}

/// That the intervals are wider than requested.
fn warning(report: &TestReport) -> String {
    let Some(widths) = report.widths() else { return String::new() };
    format!(
        "!!! WARNING\n\
         !!! Desired confidence was not achieved within the specified iterations.\n\
         !!! This implies that there was variability in the test environment that\n\
         !!! must be investigated before going further.\n\
         !!! Confidence intervals: Throughput      : {:4.3}%\n\
         !!!                       Local CPU util  : {:4.3}%\n\
         !!!                       Remote CPU util : {:4.3}%\n\n",
        widths.throughput, widths.local_cpu, widths.remote_cpu
    )
}

fn measures_cpu(options: &Options) -> (bool, bool) {
    (options.spec.local.measures_cpu, options.spec.remote.measures_cpu)
}

/// The text after the numbers of brief results.
fn brand(options: &Options) -> &str {
    if options.has_headers { "" } else { options.brand.as_deref().unwrap_or_default() }
}

/// The only number of verbosity 0: the service demand if a CPU was measured, else the throughput.
fn brief(options: &Options, report: &TestReport) -> String {
    let (local, remote) = measures_cpu(options);
    let brand = brand(options);
    let has_brand = options.test != TestName::TcpCrr;
    let demand = if local { report.local_cpu() } else { report.remote_cpu() }.service_demand;
    match (local || remote, has_brand) {
        (true, true) => format!("{demand:6.3} {} {brand}\n", cpu_method(true)),
        (true, false) => format!("{demand:6.3}\n"),
        (false, true) => format!("{:7.2} {brand}\n", report.throughput()),
        (false, false) => format!("{:7.2}\n", report.throughput()),
    }
}

/// At most eight letters of a unit, padded to them.
fn eight(word: &str) -> String {
    format!("{word:<8.8}")
}

fn stream(options: &Options, report: &TestReport) -> String {
    if options.verbosity <= 0 {
        return brief(options, report);
    }
    let (has_local, has_remote) = measures_cpu(options);
    let is_down = options.test == TestName::TcpMaerts;
    let (local, remote) = (&report.last.local, &report.last.remote);
    let unit = report.unit.word();
    let mut out = String::new();
    let brand = brand(options);
    let (seconds, throughput) = (report.seconds(), report.throughput());
    if has_local || has_remote {
        let (first, second) = if is_down { ("Recv", "Send") } else { ("Send", "Recv") };
        if options.has_headers {
            out += "Recv   Send    Send                          Utilization       Service Demand\n";
            let _ = writeln!(
                out,
                "Socket Socket  Message  Elapsed              {first}     {second}     {first}    {second}"
            );
            out += "Size   Size    Size     Time     Throughput  local    remote   local   remote\n";
            let (own, far) = (cpu_method(has_local), cpu_method(has_remote));
            let _ = writeln!(
                out,
                "bytes  bytes   bytes    secs.    {}/s  % {own}      % {far}      us/KB   us/KB\n",
                eight(unit)
            );
        }
        let (own, far) = (report.local_cpu(), report.remote_cpu());
        // As netperf does, the socket sizes are those of a test to the server in both directions.
        let size = if is_down { remote.send_size } else { local.send_size };
        let _ = writeln!(
            out,
            "{:6} {:6} {size:6}    {seconds:<6.2}     {throughput:7.2}   {:<6.2}   {:<6.2}   {:<6.3}  {:<6.3} {brand}",
            remote.recv_buffers.0, local.send_buffers.0, own.busy, far.busy, own.service_demand, far.service_demand,
        );
    } else {
        if options.has_headers {
            out += "Recv   Send    Send                          \n\
                    Socket Socket  Message  Elapsed              \n\
                    Size   Size    Size     Time     Throughput  \n";
            let _ = writeln!(out, "bytes  bytes   bytes    secs.    {unit}/sec  \n");
        }
        let (receiver, sender) = if is_down { (local, remote) } else { (remote, local) };
        let _ = writeln!(
            out,
            "{:6} {:6} {:6}    {seconds:<6.2}   {throughput:7.2}   {brand}",
            receiver.recv_buffers.0, sender.send_buffers.0, sender.send_size,
        );
    }
    if options.verbosity > 1 {
        out += &stream_details(report, is_down);
    }
    out
}

/// The calls and the segment size of a stream, from verbosity 2 on.
fn stream_details(report: &TestReport, is_down: bool) -> String {
    let (local, remote) = (&report.last.local, &report.last.remote);
    let (own, far) = if is_down { ("Recv", "Send") } else { ("Send", "Recv") };
    let (bytes, own_calls, far_calls, far_bytes) = if is_down {
        (local.bytes_received, local.recv_calls, remote.send_calls, remote.bytes_sent)
    } else {
        (local.bytes_sent, local.send_calls, remote.recv_calls, local.bytes_sent)
    };
    let per = |bytes: u64, calls: u64| if calls == 0 { 0.0 } else { approximate(bytes) / approximate(calls) };
    let word = eight("Bytes");
    let mut out = format!("\nAlignment      Offset         {word} {word}    {own}s   {word} {far}s\n");
    out += "Local  Remote  Local  Remote  Xfered   Per                 Per\n";
    let _ = writeln!(out, "{own}   {far}    {own}   {far}             {own} (avg)          {far} (avg)");
    let _ = writeln!(
        out,
        "{ALIGNMENT:5}   {ALIGNMENT:5}  {:5}   {:5} {bytes:6}  {:6.2}    {own_calls:6}   {:6.2} {far_calls:6}",
        0,
        0,
        per(bytes, own_calls),
        per(far_bytes, far_calls),
    );
    let mss = report.last.mss.map_or(-1, |mss| i64::try_from(mss).unwrap_or(-1));
    out + &format!("\nMaximum\nSegment\nSize (bytes)\n{mss:6}\n")
}

fn transactions(options: &Options, report: &TestReport) -> String {
    if options.verbosity <= 0 {
        return brief(options, report);
    }
    let mut out = String::new();
    if options.has_headers {
        out += &transaction_header(options, report);
    }
    let (has_local, has_remote) = measures_cpu(options);
    let (local, remote) = (&report.last.local, &report.last.remote);
    let spec = &report.spec;
    let (seconds, rate) = (report.seconds(), report.throughput());
    let is_each = options.test == TestName::TcpCrr;
    let brand = if is_each { String::new() } else { format!(" {}", brand(options)) };
    let ends = (local.send_buffers.0, local.recv_buffers.0);
    if has_local || has_remote {
        let (own, far) = (report.local_cpu(), report.remote_cpu());
        // The columns of the three tests differ by one blank.
        let gap = if options.test == TestName::TcpRr { "  " } else { "   " };
        let _ = writeln!(
            out,
            "{:<6} {:<6} {:<6}  {:<6} {seconds:<6.2}  {rate:<6.2}{gap}{:<6.2} {:<6.2} {:<6.3}  {:<6.3}{brand}",
            ends.0,
            ends.1,
            spec.request_size,
            spec.response_size,
            own.busy,
            far.busy,
            own.service_demand,
            far.service_demand,
        );
    } else {
        let brand = if is_each { "   ".to_owned() } else { format!("  {brand}") };
        let _ = writeln!(
            out,
            "{:<6} {:<6} {:<6}   {:<6}  {seconds:<6.2}   {rate:7.2}{brand}",
            ends.0, ends.1, spec.request_size, spec.response_size,
        );
    }
    let _ = writeln!(out, "{:<6} {:<6}", remote.send_buffers.0, remote.recv_buffers.0);
    if options.verbosity > 1 {
        out += &transaction_details(options, report);
    }
    out
}

fn transaction_header(options: &Options, report: &TestReport) -> String {
    let (has_local, has_remote) = measures_cpu(options);
    let is_rate = report.unit == ThroughputUnit::Transactions;
    let unit = report.unit.word();
    if !(has_local || has_remote) {
        return if is_rate || options.test == TestName::TcpCrr {
            "Local /Remote\n\
             Socket Size   Request  Resp.   Elapsed  Trans.\n\
             Send   Recv   Size     Size    Time     Rate         \n\
             bytes  Bytes  bytes    bytes   secs.    per sec   \n\n"
                .to_owned()
        } else {
            format!(
                "Local /Remote\n\
                 Socket Size   Request  Resp.   Elapsed  \n\
                 Send   Recv   Size     Size    Time     Throughput \n\
                 bytes  Bytes  bytes    bytes   secs.    {unit}/sec   \n\n"
            )
        };
    }
    let (own, far) = (cpu_method(has_local), cpu_method(has_remote));
    let methods =
        if options.test == TestName::TcpCrr { "%      %    ".to_owned() } else { format!("% {own}    % {far}  ") };
    let (column, second, demand) = if is_rate || options.test == TestName::TcpCrr {
        ("Trans.", "Rate     ".to_owned(), "us/Tr   us/Tr")
    } else {
        ("Tput  ", format!("{} ", eight(unit)), "us/KB   us/KB")
    };
    format!(
        "Local /Remote\n\
         Socket Size   Request Resp.  Elapsed {column}   CPU    CPU    S.dem   S.dem\n\
         Send   Recv   Size    Size   Time    {second}local  remote local   remote\n\
         bytes  bytes  bytes   bytes  secs.   per sec  {methods}  {demand}\n\n"
    )
}

/// The round trip time and the throughput in both directions, from verbosity 2 on.
fn transaction_details(options: &Options, report: &TestReport) -> String {
    let spec = &report.spec;
    match options.test {
        TestName::TcpCrr => format!(
            "\nAlignment      Offset\n\
             Local  Remote  Local  Remote\n\
             Send   Recv    Send   Recv\n\
             {ALIGNMENT:5}  {ALIGNMENT:5}   {:5}  {:5}\n",
            0, 0
        ),
        TestName::TcpRr => {
            let unit = report.unit.of_bytes();
            let rate = report.transaction_rate();
            let one_way = |size: u32| unit.per_second(1, 1.0) * rate * f64::from(size);
            format!(
                "Alignment      Offset         RoundTrip  Trans    Throughput\n\
                 Local  Remote  Local  Remote  Latency    Rate     {}/s\n\
                 Send   Recv    Send   Recv    usec/Tran  per sec  Outbound   Inbound\n\
                 {ALIGNMENT:5}  {:5}   {:5}  {:5}   {:<6.3}   {rate:<6.3} {:<6.3}    {:<6.3}\n",
                eight(unit.word()),
                0,
                0,
                0,
                report.round_trip_micros(),
                one_way(spec.request_size),
                one_way(spec.response_size),
            )
        }
        _ => String::new(),
    }
}

fn datagrams(options: &Options, report: &TestReport) -> String {
    let (has_local, has_remote) = measures_cpu(options);
    let (local, remote) = (&report.last.local, &report.last.remote);
    let (own, far) = (report.local_cpu(), report.remote_cpu());
    let sent = report.bytes_per_second(local.bytes_sent);
    let received = report.bytes_per_second(remote.bytes_received);
    if options.verbosity <= 0 {
        return match (has_local, has_remote) {
            (true, _) => format!("{:6.2} {}\n", own.service_demand, cpu_method(true)),
            (false, true) => format!("{:6.2} {}\n", far.service_demand, cpu_method(false)),
            (false, false) => format!("{sent:7.2}\n"),
        };
    }
    let unit = report.unit.word();
    let seconds = report.seconds();
    let mut out = String::new();
    let lead = format!(
        "{:6}  {:6}   {seconds:<7.2}   {:7} {:6}    ",
        local.send_buffers.0, local.send_size, local.send_calls, local.failed_sends
    );
    let second = format!("{:6}           {seconds:<7.2}   {:7}           ", remote.recv_buffers.0, remote.recv_calls);
    if has_local || has_remote {
        if options.has_headers {
            let (own, far) = (cpu_method(has_local), cpu_method(has_remote));
            out += "Socket  Message  Elapsed      Messages                   CPU      Service\n\
                    Size    Size     Time         Okay Errors   Throughput   Util     Demand\n";
            let _ = writeln!(out, "bytes   bytes    secs            #      #   {unit}/sec % {own}{far}     us/KB\n");
        }
        let _ = writeln!(out, "{lead}{sent:7.1}     {:<6.2}   {:<6.3}", own.busy, own.service_demand);
        let _ = writeln!(out, "{second}{received:7.1}     {:<6.2}   {:<6.3}\n", far.busy, far.service_demand);
    } else {
        if options.has_headers {
            out += "Socket  Message  Elapsed      Messages                \n\
                    Size    Size     Time         Okay Errors   Throughput\n";
            let _ = writeln!(out, "bytes   bytes    secs            #      #   {unit}/sec\n");
        }
        let _ = writeln!(out, "{lead}{sent:7.2}");
        let _ = writeln!(out, "{second}{received:7.2}\n");
    }
    out
}
