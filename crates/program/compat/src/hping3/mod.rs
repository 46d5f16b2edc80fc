//! Drop-in for hping3: sends crafted packets one after the other and prints the replies.
//!
//! It translates the options into a conversation and a probe sequence of `fathom_probe`. Both run in this process, so that
//! every reply is printed when it arrives.

mod listen_mode;
mod options;
mod printing;
mod show;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::IpAddr,
};

use fathom_model::units::Nanos;
use fathom_probe::{
    ChecksumMode, FlowRule, FragmentingTransport, IpFields, OwnDevice, ProbeKind, ProbePorts, ProbeRunner,
    ProbeTemplate, RawTransport, TcpProbe, port_scan::ScanOptions, source_address_for,
};
use fathom_sys::{clock, policy::Policy, process::signal, socket::raw_ip::Broadcast};

use super::closed_loop;
use fathom_run::{
    allow::{self, AllowList},
    exit::{Exit, UserError, with_privilege_hint},
    target,
};
use options::{EarlyExit, Mode, Options};
use printing::{PrintingScan, PrintingSeries};

/// hping3's exit code for an invalid command line, and for no reply at all.
const FAILED: Exit = Exit::Code(1);
/// A flood without a count ends after this time, because every run must be bounded.
const FLOOD_MAX: Nanos = Nanos::from_secs(60);
/// The same limit for packets without a count.
const RUN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// The time that hping3 waits for the last reply.
const LAST_REPLY_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The maximum size of a file that is sent in pieces, because it is kept in memory: an hour of full frames at ten per second.
const FILE_MAX: u64 = 64 << 20;

const USAGE: &str = "\
usage: hping3 host [options]
  -c --count N       end after that many packets     -i --interval N|uN  seconds or microseconds between them
  --fast, --faster   100 and 1000 a second         --flood             flat out; replies are counted, not shown
  -n -q -V --beep    numeric, quiet, verbose, bell -I --interface DEV  send through this device only
Mode                 TCP unless -0 raw IP, -1 ICMP, -2 UDP, -8 --scan PORTS, -9 --listen SIGNATURE
IP                   -a spoof, --rand-source (both in a lab), -t ttl, -N id, -r relative id, -o tos, -H protocol,
                     -f fragments, -m virtual MTU, -x more fragments, -y don't fragment, -g offset, -G record route
ICMP                 -C type, -K code, --icmp-ts
UDP and TCP          -s base port, -p [+][+]port, -k keep the port, -w window, -Q, -M seq, -L ack, -b bad checksum,
                     -F -S -R -P -A -U -X -Y flags, --tcpexitcode, --tcp-mss N, --tcp-timestamp
Common               -d bytes of data, -E file, -e signature, -j and -J dump replies,
                     -T --traceroute, --tr-stop, --tr-keep-ttl, --tr-no-rtt
";

/// Runs hping3 with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let options = match options::read(words) {
        Ok(options) => options,
        Err(EarlyExit::Help) => return closed_loop::print_now(USAGE).map(|()| Exit::Pass),
        Err(EarlyExit::Version) => {
            let text = format!("hping3 version 3.0.0-alpha-2 ({})\n", fathom_run::registry::TOOL);
            return closed_loop::print_now(&text).map(|()| Exit::Pass);
        }
        Err(EarlyExit::Invalid(text)) => {
            eprint!("{text}");
            return Ok(FAILED);
        }
        Err(EarlyExit::Unsupported(name, instead)) => {
            return Err(UserError::new(FAILED, format!("hping3 {name} is not done here"))
                .with_line("use", instead)
                .into());
        }
    };
    if let Mode::Listen(signature) = &options.mode {
        return listen_mode::listen(&options, signature);
    }
    let Ok(addresses) = target::resolve(&options.host) else {
        eprintln!("Unable to resolve '{}'", options.host);
        return Ok(FAILED);
    };
    // hping3 supports only IPv4. If there is no IPv4 address, this drop-in uses IPv6.
    let preferred = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
    let Some(target) = preferred.copied() else { return Ok(FAILED) };
    let is_in_lab = target::is_in_lab();
    if is_in_lab {
        // The hosts of a lab may always be sent to.
    } else if options.is_at_pace_of_ping() {
        allow::check_single_host(&options.host, &[target])?;
    } else {
        allowed.check(&options.host, &[target])?;
    }
    let own = source_address_for(target).map_err(|error| {
        UserError::new(Exit::Preflight, format!("there is no route to {target}"))
            .with_line("why", error.to_string())
            .with_line("try", format!("ip route get {target}"))
    })?;
    if !own.is_ipv4() && needs_ipv4(&options) {
        return Err(UserError::new(FAILED, format!("{target} is an IPv6 address; the IPv6 header has no such fields"))
            .with_line("use", "an address of IPv4 with -f, -g, -m, -x and -G")
            .into());
    }
    let conversation = conversation(&options, (own, target), is_in_lab)?;
    let broadcast = if is_in_lab { Broadcast::Sent } else { Broadcast::Refused };
    let line = RawTransport::open(target, broadcast, &Policy::anything())
        .and_then(|line| options.interface.as_deref().map_or(Ok(()), |name| line.bind_device(name)).map(|()| line));
    let line = line.map_err(|error| {
        let user_error = UserError::new(Exit::Preflight, format!("sending packets to {target} needs CAP_NET_RAW"));
        if error.is_permission() {
            return with_privilege_hint(user_error, "CAP_NET_RAW");
        }
        UserError::new(FAILED, format!("cannot send to {target}")).with_causes(&error)
    })?;
    let device = OwnDevice::of(own)?.unwrap_or(OwnDevice { name: "?".to_owned(), mtu: u16::MAX });
    let line = FragmentingTransport::new(line, longest_payload(&options, &device));
    if options.verbose {
        closed_loop::print_now(&format!("using {}, addr: {own}, MTU: {}\n", device.name, device.mtu))?;
    }
    match &options.mode {
        Mode::Scan(ports) => scan(&options, ports, &conversation, line),
        _ => send(&options, &device, &conversation, line),
    }
}

fn needs_ipv4(options: &Options) -> bool {
    options.virtual_mtu.is_some() || options.more_fragments || options.fragment_offset > 0 || options.record_route
}

/// Returns the largest payload after the IP header that is sent without fragmentation.
fn longest_payload(options: &Options, device: &OwnDevice) -> u16 {
    let header = if options.record_route { 60 } else { 20 };
    match options.virtual_mtu {
        Some(payload) => payload,
        // With fragments forbidden, the user wants to see the error for a packet that is too long.
        None if options.dont_fragment => u16::MAX,
        None => device.mtu.saturating_sub(header),
    }
}

/// Returns the source address of the packets. A foreign one is allowed only in a lab.
fn source(options: &Options, own: IpAddr, is_in_lab: bool) -> Result<IpAddr, UserError> {
    if options.random_source && !is_in_lab {
        return Err(foreign_source_error("a random address of --rand-source"));
    }
    let Some(spoof) = &options.spoof else { return Ok(own) };
    let addresses = target::resolve(spoof)?;
    let fits = addresses.into_iter().find(|address| address.is_ipv4() == own.is_ipv4());
    let Some(address) = fits else {
        return Err(UserError::new(FAILED, format!("{spoof} has no address of the target's version of IP")));
    };
    if is_in_lab || address == own {
        return Ok(address);
    }
    Err(foreign_source_error(&address.to_string()))
}

/// Returns the error for a refused source address.
fn foreign_source_error(address: &str) -> UserError {
    UserError::new(Exit::Preflight, format!("{address} is not this host's address towards the target"))
        .with_line(
            "why",
            "the owner of that address would get the answers: spoofed source addresses are allowed only in labs",
        )
        .with_line("fix", "fathom lab up pair && fathom lab exec pair a -- fathom as hping3 … 198.18.0.2")
}

fn conversation(options: &Options, (own, target): (IpAddr, IpAddr), is_in_lab: bool) -> anyhow::Result<ProbeTemplate> {
    let source = source(options, own, is_in_lab)?;
    let wall = clock::wall().0;
    let secret = u32::try_from((wall ^ wall >> 17) & u64::from(u32::MAX)).expect("32 bits are left");
    let ask = match options.mode {
        Mode::Tcp | Mode::Scan(_) | Mode::Listen(_) => ProbeKind::Tcp(TcpProbe {
            flags: options.flags,
            window: options.window,
            sequence: options.sequence,
            acknowledgment: options.acknowledgment,
            mss: options.mss,
            timestamp: options.timestamp.then_some(secret),
        }),
        Mode::Udp => ProbeKind::Udp,
        Mode::Icmp if options.icmp == (8, 0) => ProbeKind::echo(target),
        Mode::Icmp => ProbeKind::Icmp { kind: options.icmp.0, code: options.icmp.1 },
        Mode::Raw => ProbeKind::Raw { protocol: options.protocol },
    };
    // Chosen like hping3's first port, with space above for the ports of the following packets.
    let random_port = 1024 + u16::try_from(secret % 2000).expect("it is below 2000");
    Ok(ProbeTemplate {
        source,
        destination: target,
        kind: ask,
        ip: IpFields {
            hops: options.ttl.unwrap_or(if options.traceroute { 1 } else { 64 }),
            traffic_class: options.tos,
            identification: options.id,
            dont_fragment: options.dont_fragment,
            more_fragments: options.more_fragments,
            fragment_offset: options.fragment_offset,
            record_route: options.record_route,
        },
        ports: ProbePorts { destination: options.port, source: options.base_port.unwrap_or(random_port) },
        flow: if options.keep { FlowRule::SamePort } else { FlowRule::PerProbe },
        secret,
        payloads: payloads(options)?,
        checksum: if options.bad_checksum { ChecksumMode::Invalid } else { ChecksumMode::Valid },
    })
}

/// Returns the signature followed by the next piece of the file, padded with zeros. Without a file, the rest is filled with X.
fn payloads(options: &Options) -> anyhow::Result<Vec<Vec<u8>>> {
    let room = usize::from(options.data).saturating_sub(options.sign.len());
    let signed = |piece: &[u8], fill| {
        let mut payload = [options.sign.as_bytes(), piece].concat();
        payload.resize(options.data.into(), fill);
        payload
    };
    let Some(path) = options.file.as_ref().filter(|_| room > 0) else { return Ok(vec![signed(&[], b'X')]) };
    let cannot = |why: &str| UserError::new(FAILED, format!("cannot send {path}")).with_line("why", why);
    let mut bytes = Vec::new();
    let file = fs::File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes));
    file.map_err(|error| cannot(&error.to_string()))?;
    if bytes.is_empty() {
        return Err(cannot("it is empty").into());
    }
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_MAX {
        return Err(cannot("it is larger than 64 MiB, and is kept whole").with_line("use", "head -c 64M").into());
    }
    Ok(bytes.chunks(room).map(|piece| signed(piece, 0)).collect())
}

fn note_flood_limit(is_bounded: bool) {
    if is_bounded {
        eprintln!("fathom: a flood without a count ends after {FLOOD_MAX}; set the number of packets with -c");
    }
}

fn send(
    options: &Options,
    device: &OwnDevice,
    conversation: &ProbeTemplate,
    mut line: FragmentingTransport<RawTransport>,
) -> anyhow::Result<Exit> {
    closed_loop::print_now(&show::head(options, &device.name, conversation.destination))?;
    if options.flood {
        eprintln!("hping in flood mode, no replies will be shown");
    }
    let signals = signal::watch()?;
    let start = clock::now();
    let end = start + if options.flood && options.count.is_none() { FLOOD_MAX } else { RUN_MAX };
    let mut speaking = PrintingSeries::new(options, conversation, end);
    let is_stopped = || signals.received().is_some();
    let outcome =
        ProbeRunner { template: conversation, transport: &mut line, is_stopped: &is_stopped }.run(&mut speaking);
    note_flood_limit(options.flood && options.count.is_none() && clock::now() >= end);
    if let Some(error) = speaking.failed.take() {
        return Err(error.into());
    }
    if speaking.n_too_long() > 0 {
        eprintln!(
            "fathom: packets longer than the MTU of {} bytes are not cut into fragments: less -d, or no -y",
            device.mtu
        );
    }
    let heard = speaking.n_received > 0;
    std::io::stderr().write_all(speaking.tail().as_bytes())?;
    outcome.map_err(|error| UserError::new(FAILED, format!("cannot send to {}", options.host)).with_causes(&error))?;
    if options.flags_are_exit_code {
        return Ok(Exit::Code(speaking.last_flags.0));
    }
    Ok(if heard { Exit::Pass } else { FAILED })
}

fn scan(
    options: &Options,
    text: &str,
    conversation: &ProbeTemplate,
    mut line: FragmentingTransport<RawTransport>,
) -> anyhow::Result<Exit> {
    let services = printing::services();
    let ports = printing::ports(text, &services).ok_or_else(|| {
        UserError::new(FAILED, format!("`{text}` is not a list of ports")).with_line("use", "--scan 1-30,80,!22")
    })?;
    eprint!("{}", show::scan_head(options, conversation.destination, text, ports.len()));
    let signals = signal::watch()?;
    // hping3's default scan rate; a silent port is tried three times.
    let scan = ScanOptions { ports, tries: 3, timeout: LAST_REPLY_TIMEOUT, gap: Nanos::from_millis(1) };
    let mut scanning = PrintingScan::new(options, scan, &services);
    let is_stopped = || signals.received().is_some();
    let outcome =
        ProbeRunner { template: conversation, transport: &mut line, is_stopped: &is_stopped }.run(&mut scanning);
    if let Some(error) = scanning.failed.take() {
        return Err(error.into());
    }
    outcome.map_err(|error| UserError::new(FAILED, format!("cannot send to {}", options.host)).with_causes(&error))?;
    eprintln!("All replies received. Done.");
    closed_loop::print_now(&scanning.tail())?;
    Ok(Exit::Pass)
}
