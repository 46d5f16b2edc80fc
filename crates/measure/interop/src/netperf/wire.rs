//! The messages of the control connection: fixed structures of 32-bit words, with strings behind the numbers.
//!
//! netperf 2.6 to 2.7 and its repository since then send 656 bytes, 2.5 and older 256 bytes (`netlib.h`, `MAXSPECDATA`). All numbers
//! are big-endian, and a float travels as the bits of a 32-bit IEEE 754 number.

use super::Error;

/// The length of the messages of both ends, which depends on the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFormat {
    /// 256 bytes: netperf 2.5 and older.
    Short,
    /// 656 bytes: netperf 2.6 and newer.
    Long,
}

impl MessageFormat {
    /// The length of a message in bytes.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Short => 256,
            Self::Long => 656,
        }
    }
}

/// The meaning of a message (`netlib.h`).
pub mod kind {
    pub const DEBUG_ON: i32 = 1;
    pub const DEBUG_OFF: i32 = 2;
    pub const DEBUG_OK: i32 = 3;
    pub const CPU_CALIBRATE: i32 = 5;
    pub const PASSPHRASE: i32 = 6;
    /// The older request for a TCP stream, which `TCP_SENDFILE` still uses.
    pub const TCP_STREAM: i32 = 10;
    pub const TCP_STREAM_RESPONSE: i32 = 11;
    pub const TCP_STREAM_RESULTS: i32 = 12;
    /// The request for any test of sockets.
    pub const OMNI: i32 = 97;
    pub const OMNI_RESPONSE: i32 = 98;
    pub const OMNI_RESULTS: i32 = 99;
}

/// The bytes before the data of a message: its kind and its status.
const HEADER: usize = 8;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlMessage {
    /// The meaning of the data.
    pub kind: i32,
    /// In an answer the error number of the server, 0 for none; in a request the core of the server, -1 for any.
    pub status: i32,
    /// Everything after the first two words.
    data: Vec<u8>,
    format: MessageFormat,
}

impl ControlMessage {
    /// Creates a message whose data is zero.
    #[must_use]
    pub fn new(format: MessageFormat, kind: i32, status: i32) -> Self {
        Self { kind, status, data: vec![0; format.length() - HEADER], format }
    }

    /// Reads a message of 256 or 656 bytes.
    ///
    /// # Errors
    /// If it has another length.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let format = match bytes.len() {
            256 => MessageFormat::Short,
            656 => MessageFormat::Long,
            n => return Err(Error::NotNetperf { why: format!("a message of {n} bytes") }),
        };
        let word = |at: usize| bytes.get(at..at + 4).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        let data = bytes.get(HEADER..).unwrap_or_default().to_vec();
        Ok(Self { kind: i32::from_be_bytes(word(0)), status: i32::from_be_bytes(word(4)), data, format })
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.format.length());
        bytes.extend(self.kind.to_be_bytes());
        bytes.extend(self.status.to_be_bytes());
        bytes.extend(&self.data);
        bytes
    }

    /// Whether it is an answer of this kind.
    ///
    /// netserver 2.7 does not set the kind of its results: they bear that of the response before them, in the byte order in which the
    /// host left it.
    #[must_use]
    pub fn is_answer(&self, kind: i32) -> bool {
        let response = kind::OMNI_RESPONSE;
        self.kind == kind || (kind == kind::OMNI_RESULTS && [response, response.swap_bytes()].contains(&self.kind))
    }

    /// Its length and layout.
    #[must_use]
    pub fn format(&self) -> MessageFormat {
        self.format
    }

    /// A text at the start of the data, up to its zero byte: the passphrase.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        self.data.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Puts a text at the start of the data; a longer one than fits is cut, as netperf does.
    #[must_use]
    pub fn with_text(mut self, text: &str) -> Self {
        let n = text.len().min(self.data.len() - 1);
        self.data[..n].copy_from_slice(&text.as_bytes()[..n]);
        self
    }

    fn reader(&self) -> WordReader<'_> {
        WordReader { rest: &self.data }
    }

    fn writer(&mut self) -> WordWriter<'_> {
        WordWriter { rest: &mut self.data }
    }
}

/// Reads words one after another; those beyond the end are zero.
struct WordReader<'a> {
    rest: &'a [u8],
}

impl WordReader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let Some((first, rest)) = self.rest.split_first_chunk::<N>() else { return [0; N] };
        self.rest = rest;
        *first
    }

    fn skip(&mut self, n_words: usize) {
        self.rest = self.rest.get(4 * n_words..).unwrap_or_default();
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.bytes())
    }

    fn f32(&mut self) -> f32 {
        f32::from_be_bytes(self.bytes())
    }

    /// Two words, the high one first.
    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    /// A name that ends with a zero byte.
    fn name<const N: usize>(&mut self) -> String {
        let bytes: [u8; N] = self.bytes();
        let name = bytes[..N - 1].split(|byte| *byte == 0).next().unwrap_or_default();
        let is_plain = name.iter().all(u8::is_ascii_graphic);
        if is_plain { String::from_utf8_lossy(name).into_owned() } else { String::new() }
    }
}

/// Writes words one after another; those beyond the end are dropped.
struct WordWriter<'a> {
    rest: &'a mut [u8],
}

impl WordWriter<'_> {
    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        let rest = std::mem::take(&mut self.rest);
        if let Some((first, after)) = rest.split_first_chunk_mut::<N>() {
            *first = bytes;
            self.rest = after;
        }
    }

    fn u32(&mut self, word: u32) {
        self.bytes(word.to_be_bytes());
    }

    fn u32s(&mut self, words: &[u32]) {
        for word in words {
            self.u32(*word);
        }
    }

    fn i32(&mut self, word: i32) {
        self.bytes(word.to_be_bytes());
    }

    fn f32(&mut self, word: f32) {
        self.bytes(word.to_be_bytes());
    }

    fn name<const N: usize>(&mut self, name: &str) {
        let mut bytes = [0; N];
        let n = name.len().min(N - 1);
        bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
        self.bytes(bytes);
    }
}

/// The flags of a request and of its response (`nettest_bsd.h`).
pub mod flag {
    pub const NO_DELAY: u32 = 1;
    pub const CONNECT_TEST: u32 = 4;
    pub const MEASURE_CPU: u32 = 8;
    /// The client wants the name of the congestion control (`nettest_omni.c`).
    pub const WANT_CONGESTION: u32 = 0x20;
    pub const WANT_KEEPALIVE: u32 = 0x8000_0000;
}

/// The bits of a direction, from the view of the end that reads them.
pub mod direction {
    pub const SENDS: u32 = 2;
    pub const RECEIVES: u32 = 4;
}

/// The address families of a request.
pub mod family {
    pub const V4: u32 = 4;
    pub const V6: u32 = 6;
}

/// The transport protocols of a request, by their IP numbers.
pub mod protocol {
    pub const TCP: u32 = 6;
    pub const UDP: u32 = 17;
}

/// A number that says nothing was requested.
pub const UNSET: i32 = -1;

/// The request for a test (`struct omni_request_struct`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OmniRequest {
    /// `SO_SNDBUF` of the server, [`UNSET`] for the kernel's default.
    pub send_buffer: i32,
    /// Bytes per send call, [`UNSET`] for the size of the send buffer.
    pub send_size: i32,
    /// The bytes of a request, 0 or less in a stream.
    pub request_size: i32,
    /// `SO_RCVBUF` of the server.
    pub recv_buffer: i32,
    /// Bytes per receive call.
    pub recv_size: i32,
    /// The bytes of a response, 0 or less in a stream.
    pub response_size: i32,
    /// See [`flag`].
    pub flags: u32,
    /// Seconds; negative for so many transactions or bytes; 0 for no end.
    pub test_length: i32,
    /// The port to listen on, 0 for any.
    pub data_port: u32,
    /// See [`family`].
    pub family: u32,
    /// 1 for streams, 2 for datagrams.
    pub socket_type: u32,
    /// See [`protocol`].
    pub protocol: u32,
    /// See [`direction`].
    pub direction: u32,
    /// The port of the client's data socket; only a server that sends datagrams needs it.
    pub client_port: u32,
    /// The address of the client's data socket, zero if it is not bound to one.
    pub client_address: [u8; 16],
    /// The address that the server is to listen on, zero for any.
    pub server_address: [u8; 16],
    /// `IP_TOS` of the server; [`UNSET`] for the default, and absent before 2.6.
    pub traffic_class: i32,
    /// The congestion control of the server; empty for the default.
    pub congestion: String,
}

/// The alignment of buffers that netperf requests by default.
const ALIGNMENT: u32 = 8;

impl OmniRequest {
    /// Reads a request.
    #[must_use]
    pub fn read(message: &ControlMessage) -> Self {
        let mut words = message.reader();
        let (send_buffer, send_size) = (words.i32(), words.i32());
        words.skip(3);
        let request_size = words.i32();
        let (recv_buffer, recv_size) = (words.i32(), words.i32());
        words.skip(3);
        let response_size = words.i32();
        let flags = words.u32();
        words.skip(1);
        let test_length = words.i32();
        words.skip(5);
        let (data_port, family, socket_type) = (words.u32(), words.u32(), words.u32());
        let (protocol, direction, client_port) = (words.u32(), words.u32(), words.u32());
        words.skip(2);
        let (client_address, server_address) = (words.bytes(), words.bytes());
        let is_long = message.format == MessageFormat::Long;
        let (_, traffic_class) = if is_long { (words.i32(), words.i32()) } else { (UNSET, UNSET) };
        let congestion = if is_long { words.name::<16>() } else { String::new() };
        Self {
            send_buffer,
            send_size,
            request_size,
            recv_buffer,
            recv_size,
            response_size,
            flags,
            test_length,
            data_port,
            family,
            socket_type,
            protocol,
            direction,
            client_port,
            client_address,
            server_address,
            traffic_class,
            congestion,
        }
    }

    /// Writes the request; `core` is the core that the server is asked to run on.
    #[must_use]
    pub fn message(&self, format: MessageFormat, core: Option<i32>) -> ControlMessage {
        let mut message = ControlMessage::new(format, kind::OMNI, core.unwrap_or(UNSET));
        let mut words = message.writer();
        words.i32(self.send_buffer);
        words.i32(self.send_size);
        // Alignment, offset, and number of buffers.
        words.u32s(&[ALIGNMENT, 0, 0]);
        words.i32(self.request_size);
        words.i32(self.recv_buffer);
        words.i32(self.recv_size);
        words.u32s(&[ALIGNMENT, 0, 0]);
        words.i32(self.response_size);
        words.u32(self.flags);
        // The rate of the CPU is not known before the test.
        words.f32(0.0);
        words.i32(self.test_length);
        // Copy avoidance, and dirty and clean counts of buffers.
        words.u32s(&[0, 0]);
        words.u32s(&[u32::MAX; 3]);
        words.u32s(&[self.data_port, self.family, self.socket_type]);
        words.u32s(&[self.protocol, self.direction, self.client_port]);
        // No intervals.
        words.u32s(&[0; 2]);
        words.bytes(self.client_address);
        words.bytes(self.server_address);
        if format == MessageFormat::Long {
            words.i32(UNSET);
            words.i32(self.traffic_class);
            words.name::<16>(&self.congestion);
        }
        message
    }
}

/// What the server has prepared (`struct omni_response_struct`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OmniResponse {
    /// `SO_RCVBUF` before the test, as the kernel reports it.
    pub recv_buffer: i32,
    /// Bytes per receive call.
    pub recv_size: i32,
    /// `SO_SNDBUF` before the test, as the kernel reports it.
    pub send_buffer: i32,
    /// Bytes per send call.
    pub send_size: i32,
    /// See [`flag`].
    pub flags: u32,
    /// The port of the data connection.
    pub data_port: u32,
}

impl OmniResponse {
    /// Reads a response.
    #[must_use]
    pub fn read(message: &ControlMessage) -> Self {
        let mut words = message.reader();
        let (recv_buffer, recv_size, _) = (words.i32(), words.i32(), words.i32());
        let (send_buffer, send_size, _) = (words.i32(), words.i32(), words.i32());
        let flags = words.u32();
        // The rate of the CPU, the length of the test, and copy avoidance.
        words.skip(4);
        Self { recv_buffer, recv_size, send_buffer, send_size, flags, data_port: words.u32() }
    }

    /// Writes the response.
    #[must_use]
    pub fn message(&self, format: MessageFormat) -> ControlMessage {
        let mut message = ControlMessage::new(format, kind::OMNI_RESPONSE, 0);
        let mut words = message.writer();
        // One buffer of each, used again and again.
        for word in [self.recv_buffer, self.recv_size, 1, self.send_buffer, self.send_size, 1] {
            words.i32(word);
        }
        words.u32(self.flags);
        words.u32s(&[0; 4]);
        words.u32(self.data_port);
        // No intervals; frequency and security are unknown.
        words.u32s(&[0; 4]);
        if format == MessageFormat::Long {
            words.i32(UNSET);
            words.i32(UNSET);
        }
        message
    }
}

/// Where the time of a host's CPUs went, in percent of all of them; the peak is that of one CPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuPercents {
    pub busy: f32,
    pub user: f32,
    pub system: f32,
    pub iowait: f32,
    pub irq: f32,
    pub softirq: f32,
    pub peak: f32,
    /// The number of the busiest CPU, -1 if unknown.
    pub peak_idx: i32,
    /// The number of CPUs.
    pub n_cpus: u32,
}

/// The code of `/proc/stat` as the source of CPU times (`netlib.h`).
pub const PROC_STAT: u32 = 8;

/// What the server measured (`struct omni_results_struct`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OmniResults {
    pub bytes_received: u64,
    pub recv_calls: u32,
    /// `SO_RCVBUF` after the test.
    pub recv_buffer: i32,
    pub bytes_sent: u64,
    pub send_calls: u32,
    /// `SO_SNDBUF` after the test.
    pub send_buffer: i32,
    pub failed_sends: u32,
    pub transactions: u32,
    /// The length of the test in seconds.
    pub seconds: f32,
    /// The CPU of the server; `busy` is 0 if it was not to be measured.
    pub cpu: CpuPercents,
    /// How it was measured: [`PROC_STAT`] on Linux.
    pub cpu_method: u32,
    /// Segments that the server's TCP sent again, -1 if unknown; absent before 2.6.
    pub retransmits: i32,
    /// The congestion control of the server, if the request wanted it.
    pub congestion: String,
}

impl OmniResults {
    /// Reads results, as netperf 2.7 and newer (656 bytes) or 2.5 (256 bytes) lay them out.
    #[must_use]
    pub fn read(message: &ControlMessage) -> Self {
        let mut words = message.reader();
        let is_long = message.format == MessageFormat::Long;
        let (bytes_received, recv_calls, recv_buffer) = (words.u64(), words.u32(), words.i32());
        let (bytes_sent, send_calls, send_buffer) = (words.u64(), words.u32(), words.i32());
        let (failed_sends, transactions, seconds) = (words.u32(), words.u32(), words.f32());
        let mut cpu = CpuPercents { busy: words.f32(), ..CpuPercents::default() };
        if is_long {
            cpu.user = words.f32();
            cpu.system = words.f32();
            cpu.iowait = words.f32();
            cpu.irq = words.f32();
            cpu.softirq = words.f32();
        }
        // The service demand is calculated by the client.
        words.f32();
        let cpu_method = words.u32();
        cpu.n_cpus = words.u32();
        cpu.peak_idx = words.i32();
        cpu.peak = words.f32();
        // PCI identifiers of the interface.
        words.skip(4);
        let retransmits = if is_long { words.i32() } else { UNSET };
        // Interface, driver, version, firmware, bus and slot.
        let _: [u8; 16 + 4 * 32 + 16] = words.bytes();
        let congestion = if is_long { words.name::<16>() } else { String::new() };
        Self {
            bytes_received,
            recv_calls,
            recv_buffer,
            bytes_sent,
            send_calls,
            send_buffer,
            failed_sends,
            transactions,
            seconds: finite(seconds),
            cpu: cpu.finite(),
            cpu_method,
            retransmits,
            congestion,
        }
    }

    /// Writes the results.
    #[must_use]
    pub fn message(&self, format: MessageFormat) -> ControlMessage {
        let mut message = ControlMessage::new(format, kind::OMNI_RESULTS, 0);
        let mut words = message.writer();
        words.bytes(self.bytes_received.to_be_bytes());
        words.u32(self.recv_calls);
        words.i32(self.recv_buffer);
        words.bytes(self.bytes_sent.to_be_bytes());
        words.u32(self.send_calls);
        words.i32(self.send_buffer);
        words.u32(self.failed_sends);
        words.u32(self.transactions);
        words.f32(self.seconds);
        let cpu = &self.cpu;
        words.f32(cpu.busy);
        if format == MessageFormat::Long {
            for share in [cpu.user, cpu.system, cpu.iowait, cpu.irq, cpu.softirq] {
                words.f32(share);
            }
        }
        // The client calculates the service demand.
        words.f32(0.0);
        words.u32(self.cpu_method);
        words.u32(cpu.n_cpus);
        words.i32(cpu.peak_idx);
        words.f32(cpu.peak);
        words.u32s(&[0; 4]);
        if format == MessageFormat::Long {
            words.i32(self.retransmits);
            words.bytes([0; 16 + 4 * 32 + 16]);
            words.name::<16>(&self.congestion);
        }
        message
    }
}

impl CpuPercents {
    /// Replaces what is not a number, which only a broken peer sends.
    fn finite(self) -> Self {
        Self {
            busy: finite(self.busy),
            user: finite(self.user),
            system: finite(self.system),
            iowait: finite(self.iowait),
            irq: finite(self.irq),
            softirq: finite(self.softirq),
            peak: finite(self.peak),
            ..self
        }
    }
}

fn finite(number: f32) -> f32 {
    if number.is_finite() { number } else { 0.0 }
}

/// The older request for a TCP stream to the server (`struct tcp_stream_request_struct`), which `TCP_SENDFILE` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRequest {
    /// `SO_SNDBUF` of the server, negative for the kernel's default.
    pub send_buffer: i32,
    /// `SO_RCVBUF` of the server, negative for the kernel's default.
    pub recv_buffer: i32,
    /// Bytes per receive call, 0 for the size of the receive buffer.
    pub recv_size: i32,
    pub has_no_delay: bool,
    pub measures_cpu: bool,
    /// Seconds; a test by bytes sends the bytes here.
    pub test_length: i32,
    pub data_port: u32,
    /// See [`family`].
    pub family: u32,
}

impl StreamRequest {
    /// Reads a request.
    #[must_use]
    pub fn read(message: &ControlMessage) -> Self {
        let mut words = message.reader();
        let (send_buffer, recv_buffer, recv_size) = (words.i32(), words.i32(), words.i32());
        let _alignment_and_offset = words.u64();
        let (has_no_delay, measures_cpu) = (words.i32() > 0, words.i32() > 0);
        let _cpu_rate = words.f32();
        let test_length = words.i32();
        // Copy avoidance, and dirty and clean counts.
        words.skip(4);
        let (data_port, family) = (words.u32(), words.u32());
        Self { send_buffer, recv_buffer, recv_size, has_no_delay, measures_cpu, test_length, data_port, family }
    }
}

/// The answer to a [`StreamRequest`] (`struct tcp_stream_response_struct`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamResponse {
    pub recv_buffer: i32,
    pub recv_size: i32,
    pub has_no_delay: bool,
    pub measures_cpu: bool,
    pub send_buffer: i32,
    pub data_port: u32,
}

impl StreamResponse {
    /// Writes the response.
    #[must_use]
    pub fn message(&self, format: MessageFormat) -> ControlMessage {
        let mut message = ControlMessage::new(format, kind::TCP_STREAM_RESPONSE, 0);
        let mut words = message.writer();
        let flags = [self.has_no_delay.into(), self.measures_cpu.into()];
        for word in [self.recv_buffer, self.recv_size, flags[0], flags[1], 0, self.send_buffer] {
            words.i32(word);
        }
        words.u32(self.data_port);
        message
    }
}

/// The results of a [`StreamRequest`] (`struct tcp_stream_results_struct`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StreamResults {
    pub bytes_received: f64,
    pub recv_calls: u32,
    pub seconds: f32,
    /// In percent of all CPUs.
    pub cpu_busy: f32,
    pub cpu_method: u32,
    pub n_cpus: u32,
}

impl StreamResults {
    /// Writes the results.
    #[must_use]
    pub fn message(&self, format: MessageFormat) -> ControlMessage {
        let mut message = ControlMessage::new(format, kind::TCP_STREAM_RESULTS, 0);
        let mut words = message.writer();
        words.bytes(self.bytes_received.to_be_bytes());
        words.u32(self.recv_calls);
        words.f32(self.seconds);
        words.f32(self.cpu_busy);
        words.f32(0.0);
        words.u32(self.cpu_method);
        words.u32(self.n_cpus);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of netperf and netserver 2.7.0 of Debian 12 on a little-endian host.
    macro_rules! captured {
        ($name:literal) => {
            ControlMessage::read(include_bytes!(concat!("../../../../../fuzz/corpus/netperf/", $name))).unwrap()
        };
    }

    #[test]
    fn the_requests_of_netperf_are_read() {
        let stream = OmniRequest::read(&captured!("request_tcp_stream"));
        assert_eq!((stream.send_buffer, stream.send_size, stream.request_size), (UNSET, UNSET, UNSET));
        assert_eq!((stream.test_length, stream.family, stream.socket_type), (1, family::V4, 1));
        assert_eq!((stream.protocol, stream.direction), (protocol::TCP, direction::RECEIVES));
        assert_eq!((stream.flags, stream.traffic_class, stream.congestion.as_str()), (0x20, UNSET, ""));
        let rr = OmniRequest::read(&captured!("request_tcp_rr"));
        assert_eq!((rr.request_size, rr.response_size), (1, 1));
        assert_eq!(rr.flags, flag::MEASURE_CPU | flag::WANT_CONGESTION);
        assert_eq!(rr.direction, direction::SENDS | direction::RECEIVES);
        let crr = OmniRequest::read(&captured!("request_tcp_crr"));
        assert_eq!(crr.flags, flag::CONNECT_TEST | flag::WANT_CONGESTION);
        let datagrams = OmniRequest::read(&captured!("request_udp_stream"));
        assert_eq!((datagrams.protocol, datagrams.socket_type, datagrams.client_port), (protocol::UDP, 2, 47_705));
        assert_eq!(OmniRequest::read(&captured!("request_tcp_maerts")).direction, direction::SENDS);
    }

    #[test]
    fn a_request_is_the_same_bytes_as_that_of_netperf() {
        for (name, captured) in [
            ("request_tcp_stream", captured!("request_tcp_stream")),
            ("request_tcp_rr", captured!("request_tcp_rr")),
            ("request_tcp_crr", captured!("request_tcp_crr")),
            ("request_udp_stream", captured!("request_udp_stream")),
        ] {
            let mut bytes = OmniRequest::read(&captured).message(MessageFormat::Long, None).bytes();
            let mut theirs = captured.bytes();
            // The numbers of buffers, in which netperf goes round.
            for at in [24..28, 48..52] {
                bytes[at.clone()].fill(0);
                theirs[at].fill(0);
            }
            // The rest of the message is whatever its memory held.
            assert_eq!(bytes[..160], theirs[..160], "{name}");
        }
    }

    #[test]
    fn the_answers_of_netserver_are_read() {
        let response = captured!("response_tcp_rr");
        assert!(response.is_answer(kind::OMNI_RESPONSE));
        let read = OmniResponse::read(&response);
        let expected = OmniResponse {
            recv_buffer: 131_072,
            recv_size: 1,
            send_buffer: 16_384,
            send_size: 1,
            flags: flag::MEASURE_CPU,
            data_port: 36_427,
        };
        assert_eq!(read, expected);
        let results = captured!("results_tcp_rr");
        assert!(results.is_answer(kind::OMNI_RESULTS) && !results.is_answer(kind::OMNI_RESPONSE));
        let read = OmniResults::read(&results);
        assert_eq!((read.bytes_received, read.recv_calls, read.recv_buffer), (41_935, 41_935, 131_072));
        assert_eq!((read.bytes_sent, read.send_calls, read.send_buffer), (41_935, 41_935, 4_194_304));
        assert_eq!((read.transactions, read.cpu.n_cpus, read.cpu_method), (41_935, 2, PROC_STAT));
        assert!((read.seconds - 1.009).abs() < 0.01 && (read.cpu.busy - 100.0).abs() < 0.01, "{read:?}");
        let datagrams = OmniResults::read(&captured!("results_udp_stream"));
        assert_eq!((datagrams.bytes_received, datagrams.recv_calls), (57_600_000, 57_600));
    }

    #[test]
    fn the_older_request_of_sendfile_is_read() {
        let request = StreamRequest::read(&captured!("request_tcp_sendfile"));
        assert_eq!((request.send_buffer, request.recv_buffer, request.recv_size), (UNSET, UNSET, 0));
        assert_eq!((request.test_length, request.family, request.measures_cpu), (1, family::V4, false));
    }

    #[test]
    fn both_lengths_of_messages_carry_the_same() {
        let request = OmniRequest { congestion: String::new(), ..OmniRequest::read(&captured!("request_udp_stream")) };
        let results = OmniResults { bytes_sent: 1 << 40, recv_calls: 7, retransmits: -1, ..OmniResults::default() };
        for format in [MessageFormat::Short, MessageFormat::Long] {
            let bytes = request.message(format, Some(1)).bytes();
            assert_eq!(bytes.len(), format.length());
            let message = ControlMessage::read(&bytes).unwrap();
            assert_eq!((OmniRequest::read(&message), message.status), (request.clone(), 1));
            let message = ControlMessage::read(&results.message(format).bytes()).unwrap();
            assert_eq!(OmniResults::read(&message), results);
        }
        let old = OmniRequest::read(&captured!("request_short"));
        assert_eq!((old.direction, old.request_size), (direction::SENDS | direction::RECEIVES, 1));
    }
}
