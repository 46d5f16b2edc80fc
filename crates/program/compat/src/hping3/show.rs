//! The output lines of hping3.

use std::net::{IpAddr, Ipv4Addr};

use fathom_probe::{
    IcmpError, IcmpErrorKind, Reply, ReplyContent, ReplyIpHeader, ReplyTcpHeader, TcpFlags, port_scan::ScannedPort,
};

use super::options::{Mode, Options};

/// The letters of TCP flags in hping3's order.
const LETTERS: [(u8, char); 8] =
    [(0x04, 'R'), (0x02, 'S'), (0x10, 'A'), (0x01, 'F'), (0x08, 'P'), (0x20, 'U'), (0x40, 'X'), (0x80, 'Y')];

fn letters(flags: TcpFlags) -> String {
    LETTERS.iter().filter(|(flag, _)| flags.has(TcpFlags(*flag))).map(|(_, letter)| letter).collect()
}

/// Returns the first line: the kind of packets, the device and the target.
pub(super) fn head(options: &Options, device: &str, target: IpAddr) -> String {
    let what = match options.mode {
        Mode::Icmp => "icmp mode set".to_owned(),
        Mode::Udp => "udp mode set".to_owned(),
        Mode::Raw => "raw IP mode set".to_owned(),
        Mode::Tcp | Mode::Scan(_) | Mode::Listen(_) if options.flags == TcpFlags(0) => "NO FLAGS are set".to_owned(),
        Mode::Tcp | Mode::Scan(_) | Mode::Listen(_) => format!("{} set", letters(options.flags)),
    };
    let transport = match options.mode {
        Mode::Tcp | Mode::Scan(_) | Mode::Listen(_) => 20,
        Mode::Icmp | Mode::Udp => 8,
        Mode::Raw => 0,
    };
    let headers = transport + if target.is_ipv4() { 20 } else { 40 };
    format!("HPING {} ({device} {target}): {what}, {headers} headers + {} data bytes\n", options.host, options.data)
}

/// Returns the IP part of a line, including the line break that `-V` adds.
fn ip(seen: &ReplyIpHeader, from: IpAddr, id: &str, is_verbose: bool) -> String {
    let fragment = if seen.dont_fragment { "DF " } else { "" };
    let rest = if is_verbose { format!("tos={:x} iplen={}\n", seen.traffic_class, seen.length) } else { String::new() };
    // Headers are shown unchanged here, so the hop count is unknown if a header says zero.
    let ttl = seen.hops_left.unwrap_or(0);
    format!("len={} ip={from} ttl={ttl} {fragment}id={id} {rest}", seen.length)
}

/// Details about a reply that are not in the reply itself.
pub(super) struct ReplyContext {
    pub(super) number: u64,
    pub(super) rtt_ms: f64,
    pub(super) is_duplicate: bool,
    /// The identification, as a number or as the distance from the previous one.
    pub(super) id: String,
    /// The arrival time in milliseconds since midnight, in UT.
    pub(super) now_ms: u32,
}

/// Returns the lines for a reply of the host.
pub(super) fn reply(options: &Options, reply: &Reply, context: &ReplyContext) -> String {
    let double = if context.is_duplicate { "DUP! " } else { "" };
    let ip = ip(&reply.ip, reply.from, &context.id, options.verbose);
    let (number, rtt) = (context.number, context.rtt_ms);
    match reply.content {
        ReplyContent::Tcp(seen) => format!("{double}{ip}{}", tcp(options, &seen, context)),
        ReplyContent::Udp { .. } | ReplyContent::Protocol(_) => format!("{double}{ip}seq={number} rtt={rtt:.1} ms\n"),
        ReplyContent::Icmp { timestamps, .. } => {
            format!("{double}{ip}icmp_seq={number} rtt={rtt:.1} ms\n{}", times(timestamps, context.now_ms))
        }
        ReplyContent::Error(_) => String::new(),
    }
}

fn tcp(options: &Options, seen: &ReplyTcpHeader, context: &ReplyContext) -> String {
    let first = format!(
        "sport={} flags={} seq={} win={} rtt={:.1} ms\n",
        seen.source_port,
        letters(seen.flags),
        context.number,
        seen.window,
        context.rtt_ms
    );
    let more = if options.verbose {
        let ReplyTcpHeader { sequence, acknowledgment, checksum, urgent, .. } = seen;
        format!("seq={sequence} ack={acknowledgment} sum={checksum:x} urp={urgent}\n\n")
    } else {
        String::new()
    };
    let stamp = seen.timestamp.filter(|_| options.timestamp);
    let stamp = stamp.map_or_else(String::new, |value| format!("  TCP timestamp: tcpts={value}\n\n"));
    first + &more + &stamp
}

fn times(timestamps: Option<[u32; 3]>, now_ms: u32) -> String {
    let Some([originate, receive, transmit]) = timestamps else { return String::new() };
    let there = i64::from(transmit) - i64::from(receive);
    let round = i64::from(now_ms) - i64::from(originate) - there;
    format!(
        "ICMP timestamp: Originate={originate} Receive={receive} Transmit={transmit}\nICMP timestamp RTT tsrtt={round}\n\n"
    )
}

/// Formats only the sequence number of a reply and its distance from the previous one. Like hping3, it wraps at 2^32 − 1.
pub(super) fn sequence(number: u32, before: u32) -> String {
    let ahead = i64::from(number) - i64::from(before);
    let ahead = if ahead < 0 { i64::from(u32::MAX) + ahead } else { ahead };
    format!("{number:>10} +{ahead}\n")
}

/// Returns hping3's name of an ICMP error.
fn icmp_error_name(trouble: &IcmpError) -> String {
    match trouble.error_kind {
        IcmpErrorKind::HopsExceeded => "TTL 0 during transit".to_owned(),
        IcmpErrorKind::ReassemblyTimeExceeded => "TTL 0 during reassembly".to_owned(),
        IcmpErrorKind::TooBig(_) => "ICMP Fragmentation Needed/DF set".to_owned(),
        IcmpErrorKind::PortUnreachable => "ICMP Port Unreachable".to_owned(),
        IcmpErrorKind::ProtocolUnreachable => "ICMP Protocol Unreachable".to_owned(),
        IcmpErrorKind::NetworkUnreachable => "ICMP Network Unreachable".to_owned(),
        IcmpErrorKind::HostUnreachable => "ICMP Host Unreachable".to_owned(),
        IcmpErrorKind::Prohibited => "ICMP Packet filtered".to_owned(),
        IcmpErrorKind::Other(kind, code) => format!("ICMP Unreachable type={kind} code={code}"),
    }
}

/// Returns the lines for an ICMP error. Names are not resolved; they appear as hping3 prints unknown ones.
pub(super) fn icmp_error(options: &Options, reply: &Reply, trouble: &IcmpError, context: &ReplyContext) -> String {
    let name = if options.numeric { "" } else { " name=UNKNOWN" };
    let is_hop = trouble.error_kind == IcmpErrorKind::HopsExceeded && options.traceroute;
    let hop = if is_hop { format!("hop={} ", context.id) } else { String::new() };
    let line = format!("{hop}{} from ip={}{name}\n", icmp_error_name(trouble), reply.from);
    let rest = match (trouble.error_kind, trouble.source_port) {
        (IcmpErrorKind::HopsExceeded, _) if is_hop && !options.without_hop_rtt => {
            format!("{hop}hoprtt={:.1} ms\n", context.rtt_ms)
        }
        (IcmpErrorKind::PortUnreachable, Some(port)) if options.mode == Mode::Udp => {
            format!("status=0 port={port} seq={}\n", context.number)
        }
        _ => String::new(),
    };
    line + &rest
}

/// Formats the recorded route of a reply, compared with the previous one.
pub(super) fn route(route: &[Ipv4Addr], before: Option<&[Ipv4Addr]>) -> String {
    if before == Some(route) {
        return "\t(same route)\n".to_owned();
    }
    let addresses: Vec<String> = route.iter().map(|address| format!("\t{address}\n")).collect();
    format!("RR: {}", addresses.concat())
}

/// Formats a packet in hexadecimal, eight words per line.
pub(super) fn hexadecimal(packet: &[u8]) -> String {
    let word = |bytes: &[u8]| match *bytes {
        [high, low] => format!("{high:02x}{low:02x} "),
        [last] => format!("{last:02x}"),
        _ => String::new(),
    };
    dump(packet, 16, |bytes| bytes.chunks(2).map(word).collect::<Vec<_>>().concat())
}

/// Formats the characters of a packet, thirty-two per line, with dots for unprintable ones.
pub(super) fn printable(packet: &[u8]) -> String {
    let character = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '.' };
    dump(packet, 32, |bytes| bytes.iter().map(character).collect())
}

/// Formats the lines of a dump. A new line starts after each full one, even if no data is left.
fn dump(packet: &[u8], width: usize, show: impl Fn(&[u8]) -> String) -> String {
    let line = |bytes: &[u8]| show(bytes) + if bytes.len() == width { "\n\t\t" } else { "" };
    format!("\t\t{}\n\n", packet.chunks(width).map(line).collect::<Vec<_>>().concat())
}

/// Returns the text above the rows of a scan.
pub(super) fn scan_head(options: &Options, target: IpAddr, ports: &str, n_ports: usize) -> String {
    format!(
        "Scanning {} ({target}), port {ports}\n{n_ports} ports to scan, use -V to see all the replies\n\
         +----+-----------+---------+---+-----+-----+-----+\n\
         |port| serv name |  flags  |ttl| id  | win | len |\n\
         +----+-----------+---------+---+-----+-----+-----+\n",
        options.host
    )
}

/// Returns the row of a scan for a port that answered by TCP.
pub(super) fn scan_row(port: &ScannedPort, service: &str) -> Option<String> {
    let reply = port.reply?;
    let ReplyContent::Tcp(seen) = reply.content else { return None };
    let flags =
        [(0x01, 'F'), (0x02, 'S'), (0x04, 'R'), (0x08, 'P'), (0x10, 'A'), (0x20, 'U'), (0x40, 'X'), (0x80, 'Y')];
    let flags: String =
        flags.iter().map(|(flag, letter)| if seen.flags.has(TcpFlags(*flag)) { *letter } else { '.' }).collect();
    let id = reply.ip.identification.unwrap_or(0);
    let (window, length) = (seen.window, reply.ip.length);
    let ttl = reply.ip.hops_left.unwrap_or(0);
    Some(format!("{:>5} {service:<11.11}: {flags} {ttl:>3} {id:>5} {window:>5} {length:>5}\n", port.number))
}

/// Returns the text below the rows of a scan: the ports without any answer.
pub(super) fn scan_tail(silent: &[(u16, &str)]) -> String {
    let silent: Vec<String> = silent.iter().map(|(port, service)| format!("({port} {service}) ")).collect();
    format!("Not responding ports: {}\n", silent.concat())
}

/// Round-trip times in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RttStats {
    n: u32,
    min: f64,
    sum: f64,
    max: f64,
}

impl RttStats {
    pub(super) fn add(&mut self, ms: f64) {
        self.min = if self.n == 0 { ms } else { self.min.min(ms) };
        self.max = self.max.max(ms);
        self.sum += ms;
        self.n += 1;
    }
}

/// Returns the text at the end.
pub(super) fn tail(host: &str, (n_sent, n_received): (u64, u64), trips: &RttStats) -> String {
    let arrived = (n_received * 100).checked_div(n_sent).unwrap_or(if n_received == 0 { 100 } else { 0 });
    // If nothing was sent, nothing was lost.
    let lost = if n_sent == 0 { 0 } else { 100_u64.saturating_sub(arrived) };
    let mean = if trips.n == 0 { 0.0 } else { trips.sum / f64::from(trips.n) };
    format!(
        "\n--- {host} hping statistic ---\n{n_sent} packets transmitted, {n_received} packets received, {lost}% packet loss\n\
         round-trip min/avg/max = {:.1}/{mean:.1}/{:.1} ms\n",
        trips.min, trips.max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 1));
    const IP: ReplyIpHeader = ReplyIpHeader {
        hops_left: Some(63),
        traffic_class: 0,
        identification: Some(0),
        dont_fragment: true,
        length: 44,
    };

    fn context() -> ReplyContext {
        ReplyContext { number: 2, rtt_ms: 0.2345, is_duplicate: false, id: "0".to_owned(), now_ms: 0 }
    }

    fn answer(what: ReplyContent) -> Reply {
        Reply { from: FROM, ip: IP, content: what, tag: Some(2), is_from_target: true }
    }

    const SEGMENT: ReplyTcpHeader = ReplyTcpHeader {
        source_port: 80,
        flags: TcpFlags(0x12),
        sequence: 3_060_410_390,
        acknowledgment: 1_795_263_317,
        window: 64_240,
        checksum: 0x458d,
        urgent: 0,
        timestamp: None,
    };

    #[test]
    fn lines_are_those_of_hping3() {
        let options = Options::default();
        let plain = "len=44 ip=198.18.1.1 ttl=63 DF id=0 sport=80 flags=SA seq=2 win=64240 rtt=0.2 ms\n";
        assert_eq!(reply(&options, &answer(ReplyContent::Tcp(SEGMENT)), &context()), plain);
        let verbose = Options { verbose: true, ..Options::default() };
        assert_eq!(
            reply(&verbose, &answer(ReplyContent::Tcp(SEGMENT)), &context()),
            "len=44 ip=198.18.1.1 ttl=63 DF id=0 tos=0 iplen=44\nsport=80 flags=SA seq=2 win=64240 rtt=0.2 ms\n\
             seq=3060410390 ack=1795263317 sum=458d urp=0\n\n"
        );
        let echo = ReplyContent::Icmp { sequence: 2, timestamps: None };
        assert!(reply(&options, &answer(echo), &context()).ends_with(" id=0 icmp_seq=2 rtt=0.2 ms\n"));
        assert_eq!(sequence(2_230_937_228, 3_064_222_101), "2230937228 +3461682422\n");
    }

    #[test]
    fn heads_and_tails_are_those_of_hping3() {
        let options = Options { host: "h".to_owned(), flags: TcpFlags(0xff), ..Options::default() };
        assert_eq!(head(&options, "a0", FROM), "HPING h (a0 198.18.1.1): RSAFPUXY set, 40 headers + 0 data bytes\n");
        let mut trips = RttStats::default();
        for ms in [0.3, 0.9] {
            trips.add(ms);
        }
        assert_eq!(
            tail("h", (497, 2), &trips),
            "\n--- h hping statistic ---\n497 packets transmitted, 2 packets received, 100% packet loss\n\
             round-trip min/avg/max = 0.3/0.6/0.9 ms\n"
        );
        assert!(tail("h", (0, 0), &RttStats::default()).contains("0 packets received, 0% packet loss"));
    }

    #[test]
    fn dumps_and_routes_are_those_of_hping3() {
        let packet: Vec<u8> = (0x2f..=0x50).collect();
        assert_eq!(
            hexadecimal(&packet),
            "\t\t2f30 3132 3334 3536 3738 393a 3b3c 3d3e \n\t\t3f40 4142 4344 4546 4748 494a 4b4c 4d4e \n\t\t4f50 \n\n"
        );
        assert_eq!(hexadecimal(&[1, 2, 3]), "\t\t0102 03\n\n");
        assert_eq!(hexadecimal(&[0; 16]), format!("\t\t{}\n\t\t\n\n", "0000 ".repeat(8)));
        assert_eq!(printable(b"\0hping\xff ~\x7f"), "\t\t.hping. ~.\n\n");
        assert_eq!(printable(&packet), "\t\t/0123456789:;<=>?@ABCDEFGHIJKLMN\n\t\tOP\n\n");
        let hosts = [Ipv4Addr::new(198, 18, 0, 254), Ipv4Addr::new(198, 18, 1, 1)];
        assert_eq!(route(&hosts, None), "RR: \t198.18.0.254\n\t198.18.1.1\n");
        assert_eq!(route(&hosts, Some(&hosts)), "\t(same route)\n");
        assert_eq!(route(&hosts[..1], Some(&hosts)), "RR: \t198.18.0.254\n");
    }

    #[test]
    fn a_row_of_a_scan_is_that_of_hping3() {
        let port = ScannedPort {
            number: 80,
            state: fathom_probe::port_scan::PortStatus::Open,
            rtt: None,
            reply: Some(answer(ReplyContent::Tcp(SEGMENT))),
        };
        assert_eq!(scan_row(&port, "http").unwrap(), "   80 http       : .S..A...  63     0 64240    44\n");
        assert_eq!(scan_tail(&[(1, "tcpmux"), (3, "")]), "Not responding ports: (1 tcpmux) (3 ) \n");
    }
}
