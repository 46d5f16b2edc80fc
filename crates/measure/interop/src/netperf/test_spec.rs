//! What a test is, from the view of its client: the same for every way to start one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fathom_model::units::Nanos;

use super::{
    Error,
    wire::{OmniRequest, UNSET, direction, family, flag, protocol},
};

/// The transport protocol of the data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataProtocol {
    Tcp,
    Udp,
}

/// What travels over the data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPattern {
    /// The client sends a stream.
    Up,
    /// The server sends a stream.
    Down,
    /// Requests and responses in turn.
    Transactions,
}

/// What ends a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestLength {
    /// Whole seconds; zero for a test that only its client ends.
    Seconds(u32),
    /// A number of bytes of a stream, or of transactions.
    Count(u32),
}

/// The settings of one end of the data connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndSettings {
    /// `SO_SNDBUF`; `None` for the kernel's default.
    pub send_buffer: Option<u32>,
    /// `SO_RCVBUF`; `None` for the kernel's default.
    pub recv_buffer: Option<u32>,
    /// Bytes per send call of a stream; `None` for the size of the send buffer.
    pub send_size: Option<u32>,
    /// Bytes per receive call of a stream; `None` for the size of the receive buffer.
    pub recv_size: Option<u32>,
    /// Whether small segments leave at once (`TCP_NODELAY`).
    pub has_no_delay: bool,
    /// The congestion control; `None` for the host's default.
    pub congestion: Option<String>,
    /// The traffic class (DSCP and ECN bits) of sent packets; `None` for the default.
    pub traffic_class: Option<u8>,
    /// The port of the data connection; `None` if the kernel chooses.
    pub port: Option<u16>,
    /// Whether the use of this host's CPUs is measured.
    pub measures_cpu: bool,
    /// The core to run on; `None` for all.
    pub core: Option<u16>,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestSpec {
    pub protocol: DataProtocol,
    pub pattern: DataPattern,
    /// Whether each transaction has a connection of its own.
    pub is_connection_each: bool,
    pub length: TestLength,
    /// The client's end.
    pub local: EndSettings,
    /// The server's end.
    pub remote: EndSettings,
    /// Bytes of a request; zero for a connection without one.
    pub request_size: u32,
    /// Bytes of a response; zero for a connection without one.
    pub response_size: u32,
    /// Requests in flight besides the first.
    pub burst: u32,
    /// Whether the client sends from the page cache without a copy (`sendfile`).
    pub is_sendfile: bool,
    /// How long a lost datagram stalls transactions before the next request; `None`: until the end, as netperf does by default.
    pub loss_timeout: Option<Nanos>,
}

/// The most bytes of one call or message that a client sends or expects.
pub const MESSAGE_MAX: u32 = 16 << 20;
/// The longest payload of a datagram (`UDP_LENGTH_MAX` of netperf).
pub const DATAGRAM_MAX: u32 = 65_507;

/// How long a server waits for more data after the time of a test (`PAD_TIME` of `netlib.h`).
pub(crate) const PAD: Nanos = Nanos::from_secs(4);
/// Bytes per call if the kernel tells no size of a buffer (`choose_send_size` of netperf).
const CALL_BYTES: u32 = 4096;

impl Default for TestSpec {
    fn default() -> Self {
        Self {
            protocol: DataProtocol::Tcp,
            pattern: DataPattern::Up,
            is_connection_each: false,
            length: TestLength::Seconds(10),
            local: EndSettings::default(),
            remote: EndSettings::default(),
            request_size: 1,
            response_size: 1,
            burst: 0,
            is_sendfile: false,
            loss_timeout: None,
        }
    }
}

impl TestSpec {
    /// Returns the request for a test whose client has this data socket.
    pub(crate) fn request(&self, client: SocketAddr) -> OmniRequest {
        let set = |size: Option<u32>| size.and_then(|size| i32::try_from(size).ok()).unwrap_or(UNSET);
        let is_transactions = self.pattern == DataPattern::Transactions;
        let message_size = |size: u32| set(is_transactions.then_some(size));
        let flags = [
            (self.remote.has_no_delay, flag::NO_DELAY),
            (self.is_connection_each, flag::CONNECT_TEST),
            (self.remote.measures_cpu, flag::MEASURE_CPU),
            (true, flag::WANT_CONGESTION),
        ];
        let has_request = !is_transactions || self.request_size > 0;
        let has_response = !is_transactions || self.response_size > 0;
        // The directions are those of the server.
        let receives = (self.pattern != DataPattern::Down && has_request, direction::RECEIVES);
        let sends = (self.pattern != DataPattern::Up && has_response, direction::SENDS);
        OmniRequest {
            send_buffer: set(self.remote.send_buffer),
            send_size: set(self.remote.send_size),
            request_size: message_size(self.request_size),
            recv_buffer: set(self.remote.recv_buffer),
            recv_size: set(self.remote.recv_size),
            response_size: message_size(self.response_size),
            flags: flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum(),
            test_length: match self.length {
                TestLength::Seconds(seconds) => i32::try_from(seconds).unwrap_or(i32::MAX),
                TestLength::Count(count) => i32::try_from(count).map_or(i32::MIN, |count| -count),
            },
            data_port: self.remote.port.unwrap_or(0).into(),
            family: if client.is_ipv4() { family::V4 } else { family::V6 },
            socket_type: if self.protocol == DataProtocol::Tcp { 1 } else { 2 },
            protocol: if self.protocol == DataProtocol::Tcp { protocol::TCP } else { protocol::UDP },
            direction: [receives, sends].into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum(),
            client_port: client.port().into(),
            client_address: address_words(client.ip()),
            server_address: [0; 16],
            traffic_class: self.remote.traffic_class.map_or(UNSET, i32::from),
            congestion: self.remote.congestion.clone().unwrap_or_default(),
        }
    }

    /// Reads the test that a request describes; `remote` is the server's end, which takes messages of at most this many bytes.
    ///
    /// # Errors
    /// If the server does not do that, with the error number for the client.
    pub(crate) fn of_request(request: &OmniRequest, message_max: u32) -> Result<Self, Error> {
        let refuse = |why| Err(Error::Refused { why, errno: errno::EOPNOTSUPP });
        let protocol = match (request.protocol, request.socket_type) {
            (protocol::TCP, 1) => DataProtocol::Tcp,
            (protocol::UDP, 2) => DataProtocol::Udp,
            _ => return refuse("a transport protocol other than TCP and UDP"),
        };
        let is_connection_each = request.flags & flag::CONNECT_TEST != 0;
        let pattern = match request.direction & (direction::SENDS | direction::RECEIVES) {
            direction::SENDS if !is_connection_each => DataPattern::Down,
            direction::RECEIVES if !is_connection_each => DataPattern::Up,
            0 if !is_connection_each => return refuse("a test without data"),
            _ => DataPattern::Transactions,
        };
        if is_connection_each && protocol == DataProtocol::Udp {
            return refuse("a connection for each transaction over UDP");
        }
        let size = |size: i32| u32::try_from(size).ok().filter(|size| *size > 0);
        let largest = [request.send_size, request.recv_size, request.request_size, request.response_size];
        let most = if protocol == DataProtocol::Udp { DATAGRAM_MAX.min(message_max) } else { message_max };
        if largest.into_iter().filter_map(size).any(|size| size > most) {
            return Err(Error::Refused { why: "a message that is too long", errno: errno::EMSGSIZE });
        }
        let buffer = |size: i32| u32::try_from(size).ok();
        let remote = EndSettings {
            send_buffer: buffer(request.send_buffer),
            recv_buffer: buffer(request.recv_buffer),
            send_size: size(request.send_size),
            recv_size: size(request.recv_size),
            has_no_delay: request.flags & flag::NO_DELAY != 0,
            congestion: Some(request.congestion.clone()).filter(|name| !name.is_empty()),
            traffic_class: u8::try_from(request.traffic_class).ok().filter(|class| *class > 0),
            port: u16::try_from(request.data_port).ok().filter(|port| *port > 0),
            measures_cpu: request.flags & flag::MEASURE_CPU != 0,
            core: None,
        };
        let has = |bit: u32, bytes: i32| if request.direction & bit == 0 { 0 } else { size(bytes).unwrap_or(1) };
        Ok(Self {
            protocol,
            pattern,
            is_connection_each,
            length: match u32::try_from(request.test_length) {
                Ok(seconds) => TestLength::Seconds(seconds),
                Err(_) => TestLength::Count(request.test_length.unsigned_abs()),
            },
            remote,
            request_size: has(direction::RECEIVES, request.request_size),
            response_size: has(direction::SENDS, request.response_size),
            ..Self::default()
        })
    }
}

/// Error numbers of Linux on all architectures that this program runs on (`asm-generic/errno.h`).
pub(crate) mod errno {
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const EMSGSIZE: i32 = 90;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const EAFNOSUPPORT: i32 = 97;
    pub(crate) const EADDRNOTAVAIL: i32 = 99;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const EDQUOT: i32 = 122;
}

/// The words of an address in a request: IPv4 in the first, IPv6 in all four.
fn address_words(ip: IpAddr) -> [u8; 16] {
    let mut words = [0; 16];
    match ip {
        IpAddr::V4(ip) => words[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => words = ip.octets(),
    }
    words
}

/// Reads an address of a request; `None` if it is zero.
pub(crate) fn address_of(words: [u8; 16], family: u32) -> Option<IpAddr> {
    let ip = if family == family::V4 {
        IpAddr::V4(Ipv4Addr::from(*words.first_chunk::<4>()?))
    } else {
        IpAddr::V6(Ipv6Addr::from(words))
    };
    Some(ip).filter(|ip| !ip.is_unspecified())
}

/// The bytes per call of a stream: the requested ones, or as many as the buffer holds.
pub(crate) fn call_size(protocol: DataProtocol, asked: Option<u32>, buffer: i32) -> u32 {
    let default = u32::try_from(buffer).ok().filter(|size| *size > 0).unwrap_or(CALL_BYTES);
    let most = match protocol {
        DataProtocol::Udp => DATAGRAM_MAX,
        DataProtocol::Tcp => MESSAGE_MAX,
    };
    asked.unwrap_or(default).clamp(1, most)
}

/// The bytes that a stream sends in whole calls; `None` if time ends it.
pub(crate) fn stream_budget(length: TestLength, call: u32) -> Option<u64> {
    let TestLength::Count(bytes) = length else { return None };
    Some(u64::from(bytes).div_ceil(call.into()) * u64::from(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_takes_no_message_that_is_longer_than_it_says() {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let asking =
            |bytes| TestSpec { pattern: DataPattern::Transactions, response_size: bytes, ..TestSpec::default() };
        let read = |bytes| TestSpec::of_request(&asking(bytes).request(here), 1 << 20);
        assert_eq!(read(1 << 20).unwrap().response_size, 1 << 20);
        assert!(matches!(read((1 << 20) + 1), Err(Error::Refused { errno: errno::EMSGSIZE, .. })));
    }
}
