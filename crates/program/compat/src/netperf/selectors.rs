//! The values that `-o`, `-O` and `-k` select by name, and their three forms.

use std::fmt::Write as _;

use fathom_interop::netperf::{CpuPercents, DataPattern, DataProtocol, EndCounts};
use fathom_model::units::approximate;

use super::{
    classic::cpu_method,
    options::{Options, OutputForm},
    report::{TestReport, UNMEASURED},
};

/// What a value is calculated from.
type Source<'a> = (&'a Options, &'a TestReport);

/// A value with its name and the lines of its header.
struct Selector {
    name: &'static str,
    header: &'static [&'static str],
    value: fn(Source<'_>) -> String,
}

const fn row(name: &'static str, header: &'static [&'static str], value: fn(Source<'_>) -> String) -> Selector {
    Selector { name, header, value }
}

/// The word of netperf 2.7 for what it does not find out any more.
const DEPRECATED: &str = "Deprecated";
/// The alignment of buffers that netperf reports by default.
const ALIGNMENT: u32 = 8;

fn local(source: Source<'_>) -> &EndCounts {
    &source.1.last.local
}

fn remote(source: Source<'_>) -> &EndCounts {
    &source.1.last.remote
}

/// A requested size, -1 if none was.
fn asked(size: Option<u32>) -> String {
    size.map_or_else(|| "-1".to_owned(), |size| size.to_string())
}

fn percent(cpu: Option<CpuPercents>, share: fn(CpuPercents) -> f32) -> String {
    format!("{:.2}", cpu.map_or(0.0, share))
}

fn per(bytes: u64, calls: u64) -> String {
    format!("{:.2}", if calls == 0 { 0.0 } else { approximate(bytes) / approximate(calls) })
}

fn micros(nanos: Option<u64>) -> String {
    nanos.map_or(0, |nanos| nanos / 1000).to_string()
}

fn interval(source: Source<'_>, width: fn(super::report::IntervalWidths) -> f64) -> String {
    format!("{:.3}", source.1.widths().map_or(UNMEASURED, width))
}

/// The size of stream calls, which transactions do not have.
fn call(source: Source<'_>, size: u32) -> String {
    if source.1.spec.pattern == DataPattern::Transactions { "0".to_owned() } else { size.to_string() }
}

fn class(class: Option<u8>) -> String {
    class.map_or_else(|| "0xffffffff".to_owned(), |class| format!("0x{class:02x}"))
}

/// All values, in netperf's order, which `all` prints in four blocks.
const SELECTORS: &[Selector] = &[
    row("SOCKET_TYPE", &["Socket", "Type"], |(_, report)| {
        if report.spec.protocol == DataProtocol::Tcp { "Stream" } else { "Datagram" }.to_owned()
    }),
    row("PROTOCOL", &["Protocol"], |(_, report)| {
        if report.spec.protocol == DataProtocol::Tcp { "TCP" } else { "UDP" }.to_owned()
    }),
    row("DIRECTION", &["Direction"], |(_, report)| direction(report).to_owned()),
    row("ELAPSED_TIME", &["Elapsed", "Time", "(sec)"], |(_, report)| format!("{:.2}", report.seconds())),
    row("THROUGHPUT", &["Throughput"], |(_, report)| format!("{:.2}", report.throughput())),
    row("THROUGHPUT_UNITS", &["Throughput", "Units"], |(_, report)| format!("{}/s", report.unit.word())),
    row("LSS_SIZE_REQ", &["Local", "Send Socket", "Size", "Requested"], |(options, _)| {
        asked(options.spec.local.send_buffer)
    }),
    row("LSS_SIZE", &["Local", "Send Socket", "Size", "Initial"], |source| local(source).send_buffers.0.to_string()),
    row("LSS_SIZE_END", &["Local", "Send Socket", "Size", "Final"], |source| local(source).send_buffers.1.to_string()),
    row("LSR_SIZE_REQ", &["Local", "Recv Socket", "Size", "Requested"], |(options, _)| {
        asked(options.spec.local.recv_buffer)
    }),
    row("LSR_SIZE", &["Local", "Recv Socket", "Size", "Initial"], |source| local(source).recv_buffers.0.to_string()),
    row("LSR_SIZE_END", &["Local", "Recv Socket", "Size", "Final"], |source| local(source).recv_buffers.1.to_string()),
    row("RSS_SIZE_REQ", &["Remote", "Send Socket", "Size", "Requested"], |(options, _)| {
        asked(options.spec.remote.send_buffer)
    }),
    row("RSS_SIZE", &["Remote", "Send Socket", "Size", "Initial"], |source| remote(source).send_buffers.0.to_string()),
    row("RSS_SIZE_END", &["Remote", "Send Socket", "Size", "Final"], |source| {
        remote(source).send_buffers.1.to_string()
    }),
    row("RSR_SIZE_REQ", &["Remote", "Recv Socket", "Size", "Requested"], |(options, _)| {
        asked(options.spec.remote.recv_buffer)
    }),
    row("RSR_SIZE", &["Remote", "Recv Socket", "Size", "Initial"], |source| remote(source).recv_buffers.0.to_string()),
    row("RSR_SIZE_END", &["Remote", "Recv Socket", "Size", "Final"], |source| {
        remote(source).recv_buffers.1.to_string()
    }),
    row("LOCAL_SEND_SIZE", &["Local", "Send", "Size"], |source| call(source, local(source).send_size)),
    row("LOCAL_RECV_SIZE", &["Local", "Recv", "Size"], |source| call(source, local(source).recv_size)),
    row("REMOTE_SEND_SIZE", &["Remote", "Send", "Size"], |source| remote(source).send_size.to_string()),
    row("REMOTE_RECV_SIZE", &["Remote", "Recv", "Size"], |source| remote(source).recv_size.to_string()),
    row("REQUEST_SIZE", &["Request", "Size", "Bytes"], |source| message_size(source, source.1.spec.request_size)),
    row("RESPONSE_SIZE", &["Response", "Size", "Bytes"], |source| message_size(source, source.1.spec.response_size)),
    row("LOCAL_CPU_UTIL", &["Local", "CPU", "Util", "%"], |(_, report)| format!("{:.2}", report.local_cpu().busy)),
    row("LOCAL_CPU_PERCENT_USER", &["Local", "CPU", "User", "%"], |source| percent(local(source).cpu, |cpu| cpu.user)),
    row("LOCAL_CPU_PERCENT_SYSTEM", &["Local", "CPU", "System", "%"], |source| {
        percent(local(source).cpu, |cpu| cpu.system)
    }),
    row("LOCAL_CPU_PERCENT_IOWAIT", &["Local", "CPU", "I/O", "%"], |source| {
        percent(local(source).cpu, |cpu| cpu.iowait)
    }),
    row("LOCAL_CPU_PERCENT_IRQ", &["Local", "CPU", "IRQ", "%"], |source| percent(local(source).cpu, |cpu| cpu.irq)),
    row("LOCAL_CPU_PERCENT_SWINTR", &["Local", "CPU", "swintr", "%"], |source| {
        percent(local(source).cpu, |cpu| cpu.softirq)
    }),
    row("LOCAL_CPU_METHOD", &["Local", "CPU", "Util", "Method"], |(options, _)| {
        cpu_method(options.spec.local.measures_cpu).to_string()
    }),
    row("LOCAL_SD", &["Local", "Service", "Demand"], |(_, report)| format!("{:.3}", report.local_cpu().service_demand)),
    row("REMOTE_CPU_UTIL", &["Remote", "CPU", "Util", "%"], |(_, report)| format!("{:.2}", report.remote_cpu().busy)),
    row("REMOTE_CPU_PERCENT_USER", &["Remote", "CPU", "User", "%"], |source| {
        percent(remote(source).cpu, |cpu| cpu.user)
    }),
    row("REMOTE_CPU_PERCENT_SYSTEM", &["Remote", "CPU", "System", "%"], |source| {
        percent(remote(source).cpu, |cpu| cpu.system)
    }),
    row("REMOTE_CPU_PERCENT_IOWAIT", &["Remote", "CPU", "I/O", "%"], |source| {
        percent(remote(source).cpu, |cpu| cpu.iowait)
    }),
    row("REMOTE_CPU_PERCENT_IRQ", &["Remote", "CPU", "IRQ", "%"], |source| percent(remote(source).cpu, |cpu| cpu.irq)),
    row("REMOTE_CPU_PERCENT_SWINTR", &["Remote", "CPU", "swintr", "%"], |source| {
        percent(remote(source).cpu, |cpu| cpu.softirq)
    }),
    row("REMOTE_CPU_METHOD", &["Remote", "CPU", "Util", "Method"], |(options, _)| {
        cpu_method(options.spec.remote.measures_cpu).to_string()
    }),
    row("REMOTE_SD", &["Remote", "Service", "Demand"], |(_, report)| {
        format!("{:.3}", report.remote_cpu().service_demand)
    }),
    row("SD_UNITS", &["Service", "Demand", "Units"], |(_, report)| {
        if report.unit == super::units::ThroughputUnit::Transactions { "usec/Tran" } else { "usec/KB" }.to_owned()
    }),
    row("CONFIDENCE_LEVEL", &["Confidence", "Level", "Percent"], |(_, report)| report.requested().0.to_string()),
    row("CONFIDENCE_INTERVAL", &["Confidence", "Width", "Target"], |(_, report)| {
        format!("{:.6}", report.widths().map_or(UNMEASURED, |_| report.requested().1))
    }),
    row("CONFIDENCE_ITERATION", &["Confidence", "Iterations", "Run"], |(_, report)| report.n_iterations().to_string()),
    row("THROUGHPUT_CONFID", &["Throughput", "Confidence", "Width (%)"], |source| {
        interval(source, |widths| widths.throughput)
    }),
    row("LOCAL_CPU_CONFID", &["Local", "CPU", "Confidence", "Width (%)"], |source| {
        interval(source, |widths| widths.local_cpu)
    }),
    row("REMOTE_CPU_CONFID", &["Remote", "CPU", "Confidence", "Width (%)"], |source| {
        interval(source, |widths| widths.remote_cpu)
    }),
    row("TRANSACTION_RATE", &["Transaction", "Rate", "Tran/s"], |source| rate(source, TestReport::transaction_rate)),
    row("RT_LATENCY", &["Round", "Trip", "Latency", "usec/tran"], |source| rate(source, TestReport::round_trip_micros)),
    row("BURST_SIZE", &["Initial", "Burst", "Requests"], |(options, _)| options.spec.burst.to_string()),
    row("LOCAL_TRANSPORT_RETRANS", &["Local", "Transport", "Retransmissions"], |source| {
        local(source).retransmits.unwrap_or(-1).to_string()
    }),
    row("REMOTE_TRANSPORT_RETRANS", &["Remote", "Transport", "Retransmissions"], |source| {
        remote(source).retransmits.unwrap_or(-1).to_string()
    }),
    row("TRANSPORT_MSS", &["Transport", "MSS", "bytes"], |(_, report)| {
        report.last.mss.map_or_else(|| "-1".to_owned(), |mss| mss.to_string())
    }),
    row("LOCAL_SEND_THROUGHPUT", &["Local", "Send", "Throughput"], |source| {
        throughput(source, local(source).bytes_sent)
    }),
    row("LOCAL_RECV_THROUGHPUT", &["Local", "Recv", "Throughput"], |source| {
        throughput(source, local(source).bytes_received)
    }),
    row("REMOTE_SEND_THROUGHPUT", &["Remote", "Send", "Throughput"], |source| {
        throughput(source, remote(source).bytes_sent)
    }),
    row("REMOTE_RECV_THROUGHPUT", &["Remote", "Recv", "Throughput"], |source| {
        throughput(source, remote(source).bytes_received)
    }),
    row("LOCAL_CPU_BIND", &["Local", "CPU", "Bind"], |(options, _)| asked(options.spec.local.core.map(u32::from))),
    row("LOCAL_CPU_COUNT", &["Local", "CPU", "Count"], |_| {
        std::thread::available_parallelism().map_or(1, usize::from).to_string()
    }),
    row("LOCAL_CPU_PEAK_UTIL", &["Local", "Peak", "Per CPU", "Util %"], |source| {
        percent(local(source).cpu, |cpu| cpu.peak)
    }),
    row("LOCAL_CPU_PEAK_ID", &["Local", "Peak", "Per CPU", "ID"], |source| peak(local(source))),
    row("REMOTE_CPU_BIND", &["Remote", "CPU", "Bind"], |(options, _)| asked(options.spec.remote.core.map(u32::from))),
    row("REMOTE_CPU_COUNT", &["Remote", "CPU", "Count"], |source| {
        remote(source).cpu.map_or(0, |cpu| cpu.n_cpus).to_string()
    }),
    row("REMOTE_CPU_PEAK_UTIL", &["Remote", "Peak", "Per CPU", "Util %"], |source| {
        percent(remote(source).cpu, |cpu| cpu.peak)
    }),
    row("REMOTE_CPU_PEAK_ID", &["Remote", "Peak", "Per CPU", "ID"], |source| peak(remote(source))),
    row("SOURCE_PORT", &["Source", "Port"], |(options, _)| options.spec.local.port.unwrap_or(0).to_string()),
    row("SOURCE_ADDR", &["Source", "Address"], |(options, _)| {
        options.local_host.clone().unwrap_or_else(|| "0.0.0.0".to_owned())
    }),
    row("DEST_PORT", &["Destination", "Port"], |(options, _)| options.spec.remote.port.unwrap_or(0).to_string()),
    row("DEST_ADDR", &["Destination", "Address"], |(options, _)| {
        options.host.clone().unwrap_or_else(|| "localhost".to_owned())
    }),
    row("LOCAL_SEND_CALLS", &["Local", "Send", "Calls"], |source| local(source).send_calls.to_string()),
    row("LOCAL_RECV_CALLS", &["Local", "Recv", "Calls"], |source| local(source).recv_calls.to_string()),
    row("LOCAL_BYTES_PER_RECV", &["Local", "Bytes", "Per", "Recv"], |source| {
        per(local(source).bytes_received, local(source).recv_calls)
    }),
    row("LOCAL_BYTES_PER_SEND", &["Local", "Bytes", "Per", "Send"], |source| {
        per(local(source).bytes_sent, local(source).send_calls)
    }),
    row("LOCAL_BYTES_SENT", &["Local", "Bytes", "Sent"], |source| local(source).bytes_sent.to_string()),
    row("LOCAL_BYTES_RECVD", &["Local", "Bytes", "Received"], |source| local(source).bytes_received.to_string()),
    row("LOCAL_BYTES_XFERD", &["Local", "Bytes", "Xferred"], |source| moved(local(source))),
    row("LOCAL_SEND_OFFSET", &["Local", "Send", "Offset"], |_| "0".to_owned()),
    row("LOCAL_RECV_OFFSET", &["Local", "Recv", "Offset"], |_| "0".to_owned()),
    row("LOCAL_SEND_ALIGN", &["Local", "Send", "Alignment"], |_| ALIGNMENT.to_string()),
    row("LOCAL_RECV_ALIGN", &["Local", "Recv", "Alignment"], |_| ALIGNMENT.to_string()),
    row("LOCAL_NODELAY", &["Local", "NODELAY"], |(options, _)| u8::from(options.spec.local.has_no_delay).to_string()),
    row("REMOTE_SEND_CALLS", &["Remote", "Send", "Calls"], |source| remote(source).send_calls.to_string()),
    row("REMOTE_RECV_CALLS", &["Remote", "Recv", "Calls"], |source| remote(source).recv_calls.to_string()),
    row("REMOTE_BYTES_PER_RECV", &["Remote", "Bytes", "Per", "Recv"], |source| {
        per(remote(source).bytes_received, remote(source).recv_calls)
    }),
    row("REMOTE_BYTES_PER_SEND", &["Remote", "Bytes", "Per", "Send"], |source| {
        per(remote(source).bytes_sent, remote(source).send_calls)
    }),
    row("REMOTE_BYTES_SENT", &["Remote", "Bytes", "Sent"], |source| remote(source).bytes_sent.to_string()),
    row("REMOTE_BYTES_RECVD", &["Remote", "Bytes", "Received"], |source| remote(source).bytes_received.to_string()),
    row("REMOTE_BYTES_XFERD", &["Remote", "Bytes", "Xferred"], |source| moved(remote(source))),
    row("REMOTE_NODELAY", &["Remote", "NODELAY"], |(options, _)| {
        u8::from(options.spec.remote.has_no_delay).to_string()
    }),
    row("LOCAL_SYSNAME", &["Local", "Sysname"], |_| DEPRECATED.to_owned()),
    row("REMOTE_SYSNAME", &["Remote", "Sysname"], |_| DEPRECATED.to_owned()),
    row("RESULT_BRAND", &["Result", "Tag"], |(options, _)| {
        format!("\"{}\"", options.brand.as_deref().unwrap_or_default())
    }),
    row("UUID", &["Test", "UUID"], |(options, _)| options.uuid.clone().unwrap_or_default()),
    row("MIN_LATENCY", &["Minimum", "Latency", "Microseconds"], |(_, report)| micros(report.last.latencies.min())),
    row("MAX_LATENCY", &["Maximum", "Latency", "Microseconds"], |(_, report)| micros(report.last.latencies.max())),
    row("P50_LATENCY", &["50th", "Percentile", "Latency", "Microseconds"], |(_, report)| {
        micros(report.last.latencies.quantile(0.5))
    }),
    row("P90_LATENCY", &["90th", "Percentile", "Latency", "Microseconds"], |(_, report)| {
        micros(report.last.latencies.quantile(0.9))
    }),
    row("P99_LATENCY", &["99th", "Percentile", "Latency", "Microseconds"], |(_, report)| {
        micros(report.last.latencies.quantile(0.99))
    }),
    row("MEAN_LATENCY", &["Mean", "Latency", "Microseconds"], |(_, report)| {
        format!("{:.2}", report.last.latencies.mean().unwrap_or(0.0) / 1000.0)
    }),
    row("STDDEV_LATENCY", &["Stddev", "Latency", "Microseconds"], |(_, report)| {
        format!("{:.2}", report.last.latencies.stdev().unwrap_or(0.0) / 1000.0)
    }),
    row("LOCAL_SOCKET_TOS", &["Local", "Socket", "TOS"], |(options, _)| class(options.spec.local.traffic_class)),
    row("REMOTE_SOCKET_TOS", &["Remote", "Socket", "TOS"], |(options, _)| class(options.spec.remote.traffic_class)),
    row("LOCAL_CONG_CONTROL", &["Local", "Congestion", "Control", "Algorithm"], |source| {
        local(source).congestion.clone().unwrap_or_default()
    }),
    row("REMOTE_CONG_CONTROL", &["Remote", "Congestion", "Control", "Algorithm"], |source| {
        remote(source).congestion.clone().unwrap_or_default()
    }),
    row("COMMAND_LINE", &["Command", "Line"], |(options, _)| format!("\"{}\"", options.command_line)),
];

/// The first values of the four blocks of `all`.
const BLOCKS: [&str; 4] = ["SOCKET_TYPE", "LOCAL_CPU_UTIL", "LOCAL_SEND_THROUGHPUT", "LOCAL_SYSNAME"];

pub(super) fn direction(report: &TestReport) -> &'static str {
    match (report.spec.pattern, report.spec.is_connection_each) {
        (DataPattern::Up, _) => "Send",
        (DataPattern::Down, _) => "Receive",
        (DataPattern::Transactions, false) => "Send|Recv",
        (DataPattern::Transactions, true) if report.spec.request_size == 0 => "Connection",
        (DataPattern::Transactions, true) => "Connect|Send|Recv",
    }
}

fn message_size((_, report): Source<'_>, size: u32) -> String {
    if report.spec.pattern == DataPattern::Transactions { size.to_string() } else { "-1".to_owned() }
}

fn rate((_, report): Source<'_>, value: fn(&TestReport) -> f64) -> String {
    let is_transactions = report.spec.pattern == DataPattern::Transactions;
    format!("{:.3}", if is_transactions { value(report) } else { UNMEASURED })
}

fn throughput((_, report): Source<'_>, bytes: u64) -> String {
    format!("{:.2}", report.bytes_per_second(bytes))
}

fn peak(end: &EndCounts) -> String {
    end.cpu.map_or(-1, |cpu| cpu.peak_idx).to_string()
}

fn moved(end: &EndCounts) -> String {
    (end.bytes_sent + end.bytes_received).to_string()
}

/// The values of a test without a selection.
fn default_names(options: &Options) -> Vec<&'static str> {
    let mut names = match options.spec.pattern {
        DataPattern::Up => vec!["LSS_SIZE_END", "RSR_SIZE_END", "LOCAL_SEND_SIZE"],
        DataPattern::Down => vec!["RSS_SIZE_END", "LSR_SIZE_END", "REMOTE_SEND_SIZE"],
        DataPattern::Transactions => {
            vec!["LSS_SIZE_END", "LSR_SIZE_END", "RSR_SIZE_END", "RSS_SIZE_END", "REQUEST_SIZE", "RESPONSE_SIZE"]
        }
    };
    names.extend(["ELAPSED_TIME", "THROUGHPUT", "THROUGHPUT_UNITS"]);
    if options.spec.local.measures_cpu || options.spec.remote.measures_cpu {
        let first = SELECTORS.iter().position(|selector| selector.name == "LOCAL_CPU_UTIL").unwrap_or(0);
        let last = SELECTORS.iter().position(|selector| selector.name == "SD_UNITS").unwrap_or(0);
        // netperf puts both service demands behind the CPUs of both ends.
        let of_cpu: Vec<&str> = SELECTORS[first..=last].iter().map(|selector| selector.name).collect();
        let (demands, shares): (Vec<&str>, Vec<&str>) = of_cpu.into_iter().partition(|name| name.contains("SD"));
        names.extend(shares.into_iter().chain(demands));
    }
    names
}

/// The selected values in blocks, or the names that do not exist.
fn blocks(options: &Options) -> Result<Vec<Vec<&'static Selector>>, Vec<String>> {
    let find = |name: &str| SELECTORS.iter().find(|selector| selector.name.eq_ignore_ascii_case(name));
    let Some(selection) = &options.selection else {
        return Ok(vec![default_names(options).into_iter().filter_map(find).collect()]);
    };
    if selection.eq_ignore_ascii_case("all") {
        let starts = BLOCKS.map(|name| SELECTORS.iter().position(|selector| selector.name == name).unwrap_or(0));
        let ends = starts.iter().skip(1).copied().chain([SELECTORS.len()]);
        return Ok(starts.iter().zip(ends).map(|(start, end)| SELECTORS[*start..end].iter().collect()).collect());
    }
    let is_list = selection.contains([',', ';']) || find(selection).is_some();
    let text = if is_list { selection.clone() } else { read_file(selection)? };
    let separators = if is_list { [';', ';'] } else { ['\n', ';'] };
    let lines = text.split(separators).filter(|line| !line.trim().is_empty());
    let names = lines.map(|line| line.split([',', ' ']).filter(|name| !name.is_empty()).collect::<Vec<_>>());
    let names: Vec<Vec<&str>> = names.collect();
    let unknown: Vec<String> =
        names.iter().flatten().filter(|name| find(name).is_none()).map(|name| (*name).to_owned()).collect();
    if !unknown.is_empty() {
        return Err(unknown);
    }
    Ok(names.into_iter().map(|line| line.into_iter().filter_map(find).collect()).collect())
}

fn read_file(path: &str) -> Result<String, Vec<String>> {
    std::fs::read_to_string(path).map_err(|_| vec![path.to_owned()])
}

/// The error of a selection with unknown names; checked before a test.
pub(super) fn check(options: &Options) -> Result<(), String> {
    blocks(options).map(drop).map_err(|unknown| {
        format!("there is no output, and no file with outputs, called {} (-- -o '?' lists them)", unknown.join(", "))
    })
}

/// All names, as `?` prints them.
pub(super) fn names(form: OutputForm) -> String {
    let separator = if form == OutputForm::Human { "\n" } else { "," };
    let names: Vec<&str> = SELECTORS.iter().map(|selector| selector.name).collect();
    names.join(separator) + "\n"
}

/// The selected values in the requested form.
pub(super) fn result(options: &Options, report: &TestReport) -> String {
    let blocks = blocks(options).unwrap_or_default();
    let shown = |selector: &&Selector| (selector.header, selector.name, (selector.value)((options, report)));
    let blocks: Vec<Vec<_>> = blocks.iter().map(|block| block.iter().map(shown).collect()).collect();
    let mut out = String::new();
    match options.form {
        OutputForm::KeyValue => {
            for (_, name, value) in blocks.iter().flatten() {
                let _ = writeln!(out, "{name}={value}");
            }
        }
        OutputForm::Csv => {
            let join = |texts: Vec<String>| texts.join(",");
            if options.has_headers {
                let headers = blocks.iter().flatten().map(|(header, ..)| header.join(" ")).collect();
                let _ = writeln!(out, "{}", join(headers));
            }
            let _ = writeln!(out, "{}", join(blocks.into_iter().flatten().map(|(.., value)| value).collect()));
        }
        OutputForm::Human | OutputForm::Classic => {
            for (idx, block) in blocks.iter().enumerate() {
                if idx > 0 {
                    out.push('\n');
                }
                out += &columns(options, block);
            }
        }
    }
    out
}

/// One block under headers of up to four lines; each column is as wide as its widest line.
fn columns(options: &Options, block: &[(&[&str], &str, String)]) -> String {
    let width =
        |header: &[&str], value: &str| header.iter().map(|line| line.len()).chain([value.len() + 1]).max().unwrap_or(0);
    let line = |cell: &dyn Fn(&[&str], &str) -> String| {
        let cells = block.iter().map(|(header, _, value)| {
            let width = width(header, value);
            format!("{:<width$} ", cell(header, value))
        });
        cells.collect::<String>() + "\n"
    };
    let mut out = String::new();
    if options.has_headers {
        for idx in 0..4 {
            out += &line(&|header, _| header.get(idx).copied().unwrap_or_default().to_owned());
        }
    }
    out + &line(&|_, value| value.to_owned())
}
