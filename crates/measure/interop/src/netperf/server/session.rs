//! One client: its messages, one test after another.

use std::{net::SocketAddr, sync::atomic::Ordering};

use fathom_model::units::Nanos;
use fathom_sys::process::affinity;

use super::{SessionCounts, options::SharedSetup, served_test::ServedTest};
use crate::netperf::{
    CpuTicks, DataPattern, DataProtocol, EndCounts, EndSettings, Error, TestLength, TestSpec,
    control::ControlConnection,
    error::UNKNOWN_TEST,
    test_spec::{address_of, errno},
    wire::{
        ControlMessage, OmniRequest, OmniResponse, OmniResults, PROC_STAT, StreamRequest, StreamResponse,
        StreamResults, family, flag, kind,
    },
};

/// How long a client may be silent between two tests.
const IDLE_MAX: Nanos = Nanos::from_secs(120);
/// How long a client may take to show the passphrase.
const PASSPHRASE_MAX: Nanos = Nanos::from_secs(20);
/// Ports below this one belong to services of the host.
const PORT_MIN: u32 = 1024;

/// Whether a client may test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Welcome {
    Served,
    /// The server has as many clients as it takes.
    Busy,
}

/// The connection to a client.
pub(super) struct Session<'a> {
    control: ControlConnection,
    /// The server's and the client's address on the control connection.
    addresses: (SocketAddr, SocketAddr),
    setup: &'a SharedSetup,
    /// Whether a test runs.
    is_testing: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(control: ControlConnection, addresses: (SocketAddr, SocketAddr), setup: &'a SharedSetup) -> Self {
        Self { control, addresses, setup, is_testing: false }
    }

    /// Serves until the client leaves, or until something goes wrong, of which the client is told.
    pub(super) fn serve(mut self, welcome: Welcome, counts: &SessionCounts) {
        let outcome = self.serve_tests(welcome, counts);
        let errno = match outcome {
            Ok(()) => return,
            Err(Error::Refused { errno, .. } | Error::Remote { errno }) => errno,
            Err(Error::SocketOption { cause, .. } | Error::Listen { cause } | Error::Transfer { cause }) => {
                cause.raw_os_error().unwrap_or(errno::EOPNOTSUPP)
            }
            Err(Error::Silent { .. }) => errno::ETIMEDOUT,
            Err(_) => {
                let count = if self.is_testing { &counts.failed } else { &counts.rejected };
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        counts.failed.fetch_add(1, Ordering::Relaxed);
        // A client that is already gone needs no reason.
        let _ = self.control.send(&ControlMessage::new(self.control.format(), kind::OMNI_RESPONSE, errno));
    }

    fn serve_tests(&mut self, welcome: Welcome, counts: &SessionCounts) -> Result<(), Error> {
        if !self.has_passphrase()? {
            return Err(Error::ClientGone);
        }
        while let Some(message) = self.control.receive("a request", IDLE_MAX)? {
            if welcome == Welcome::Busy {
                return Err(Error::Refused { why: "a client more than the server takes", errno: errno::EBUSY });
            }
            if let Ok(core) = usize::try_from(message.status) {
                // As netserver does, a test goes on where it may if the core does not exist.
                let _ = affinity::pin_thread(core);
            }
            match message.kind {
                kind::OMNI => self.serve_omni(&message)?,
                kind::TCP_STREAM => self.serve_stream(&message)?,
                kind::DEBUG_ON | kind::DEBUG_OFF => {
                    self.control.send(&ControlMessage::new(message.format(), kind::DEBUG_OK, 0))?;
                    continue;
                }
                kind::CPU_CALIBRATE => {
                    self.control.send(&ControlMessage::new(message.format(), kind::CPU_CALIBRATE, 0))?;
                    continue;
                }
                // Without a passphrase of its own, a server ignores those of clients.
                kind::PASSPHRASE => continue,
                // Bytes of another protocol get no answer.
                other if !(1..1000).contains(&other) => return Err(Error::NotNetperf { why: format!("kind {other}") }),
                _ => return Err(Error::Remote { errno: UNKNOWN_TEST }),
            }
            counts.finished.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the client has shown the passphrase, if there is one.
    fn has_passphrase(&mut self) -> Result<bool, Error> {
        let Some(passphrase) = self.setup.options.passphrase.clone() else { return Ok(true) };
        let message = self.control.receive("the passphrase", PASSPHRASE_MAX)?;
        let shown = message.filter(|message| message.kind == kind::PASSPHRASE);
        // The whole text is compared, so that the time of the answer does not tell how much of it is right.
        Ok(shown.is_some_and(|message| is_same(message.text(), passphrase.as_bytes())))
    }

    fn serve_omni(&mut self, message: &ControlMessage) -> Result<(), Error> {
        let request = OmniRequest::read(message);
        let spec = TestSpec::of_request(&request, self.setup.options.message_max)?;
        self.check(&spec, request.family, request.data_port)?;
        if address_of(request.server_address, request.family).is_some_and(|at| at != self.addresses.0.ip()) {
            return Err(Error::Refused { why: "another address of this host", errno: errno::EADDRNOTAVAIL });
        }
        // The data goes where the control connection comes from, whatever address the request names.
        let named = address_of(request.client_address, request.family).filter(|_| request.family == family::V4);
        if spec.pattern == DataPattern::Down && named.is_some_and(|named| named != self.addresses.1.ip()) {
            return Err(Error::Refused { why: "to send to another host than the client", errno: errno::EACCES });
        }
        let client_port = u16::try_from(request.client_port).unwrap_or(0);
        let mut test = ServedTest::open(self.setup, &self.control, &spec, client_port)?;
        let response = OmniResponse {
            recv_buffer: test.buffers.1,
            recv_size: i32::try_from(test.recv_size).unwrap_or(i32::MAX),
            send_buffer: test.buffers.0,
            send_size: i32::try_from(test.send_size).unwrap_or(i32::MAX),
            flags: request.flags & (flag::NO_DELAY | flag::MEASURE_CPU),
            data_port: test.port.into(),
        };
        self.control.send(&response.message(message.format()))?;
        let counts = self.run(&mut test)?;
        let results = OmniResults {
            bytes_received: counts.bytes_received,
            recv_calls: wrapped(counts.recv_calls),
            recv_buffer: counts.recv_buffers.1,
            bytes_sent: counts.bytes_sent,
            send_calls: wrapped(counts.send_calls),
            send_buffer: counts.send_buffers.1,
            failed_sends: wrapped(counts.failed_sends),
            transactions: wrapped(counts.transactions),
            seconds: test.seconds,
            cpu: counts.cpu.unwrap_or_default(),
            cpu_method: counts.cpu.map_or(0, |_| PROC_STAT),
            retransmits: counts.retransmits.and_then(|n| i32::try_from(n).ok()).unwrap_or(-1),
            congestion: counts.congestion.unwrap_or_default(),
        };
        self.control.send(&results.message(message.format()))
    }

    /// Runs a test to its end.
    fn run(&mut self, test: &mut ServedTest) -> Result<EndCounts, Error> {
        self.is_testing = true;
        let counts = test.run(&self.control)?;
        self.is_testing = false;
        Ok(counts)
    }

    /// The older form of a stream to the server.
    fn serve_stream(&mut self, message: &ControlMessage) -> Result<(), Error> {
        let request = StreamRequest::read(message);
        let size = |size: i32| u32::try_from(size).ok();
        // A test by bytes gives them as its seconds; the client closes its connection after them.
        let seconds = u32::try_from(request.test_length).unwrap_or(0);
        let seconds = self.setup.options.test_secs_max.map_or(seconds, |most| seconds.min(most));
        let spec = TestSpec {
            protocol: DataProtocol::Tcp,
            pattern: DataPattern::Up,
            length: TestLength::Seconds(seconds),
            remote: EndSettings {
                send_buffer: size(request.send_buffer),
                recv_buffer: size(request.recv_buffer),
                recv_size: size(request.recv_size)
                    .filter(|size| *size > 0)
                    .map(|size| size.min(self.setup.options.message_max)),
                has_no_delay: request.has_no_delay,
                measures_cpu: request.measures_cpu,
                ..EndSettings::default()
            },
            ..TestSpec::default()
        };
        self.check(&spec, request.family, request.data_port)?;
        let mut test = ServedTest::open(self.setup, &self.control, &spec, 0)?;
        let response = StreamResponse {
            recv_buffer: test.buffers.1,
            recv_size: i32::try_from(test.recv_size).unwrap_or(i32::MAX),
            has_no_delay: request.has_no_delay,
            measures_cpu: request.measures_cpu,
            send_buffer: test.buffers.0,
            data_port: test.port.into(),
        };
        self.control.send(&response.message(message.format()))?;
        let counts = self.run(&mut test)?;
        let cpu = counts.cpu.unwrap_or_default();
        let results = StreamResults {
            bytes_received: fathom_model::units::approximate(counts.bytes_received),
            recv_calls: wrapped(counts.recv_calls),
            seconds: test.seconds,
            cpu_busy: cpu.busy,
            cpu_method: counts.cpu.map_or(0, |_| PROC_STAT),
            n_cpus: CpuTicks::now().map_or(1, |ticks| ticks.n_cpus()),
        };
        self.control.send(&results.message(message.format()))
    }

    /// Refuses a test that is longer than allowed, or that goes elsewhere than the control connection.
    fn check(&self, spec: &TestSpec, family: u32, data_port: u32) -> Result<(), Error> {
        let refuse = |why, errno| Err(Error::Refused { why, errno });
        let is_v4 = self.addresses.1.is_ipv4();
        if family != if is_v4 { family::V4 } else { family::V6 } {
            return refuse("another address family than that of the control connection", errno::EAFNOSUPPORT);
        }
        if (1..PORT_MIN).contains(&data_port) {
            return refuse("a port of the host's services", errno::EACCES);
        }
        match (spec.length, self.setup.options.test_secs_max) {
            (TestLength::Seconds(seconds), Some(most)) if seconds > most => {
                refuse("a test that is longer than allowed", errno::EACCES)
            }
            _ => Ok(()),
        }
    }
}

/// A count as the message carries it, which has no room for more than 32 bits.
fn wrapped(count: u64) -> u32 {
    u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// Compares two texts in a time that depends on their lengths only.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right).fold(0, |sum, (left, right)| sum | (left ^ right));
    left.len() == right.len() && differences == 0
}
