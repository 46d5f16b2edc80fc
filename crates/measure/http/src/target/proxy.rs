//! The bytes that a connection sends before HTTP or TLS: the PROXY header, and the request for a tunnel.

use std::net::SocketAddr;

use proxy_header::{ProxiedAddress, ProxyHeader};

use super::{ProxyFault, TargetConfigError, request_template::authorization};
use crate::{h1::Malformed, url::Url};

/// The longest answer of a proxy, limited like the head of a response.
const HEAD_MAX: usize = 32 * 1024;
/// The most fields of a proxy's answer, limited like the head of a response.
const FIELDS_MAX: usize = 100;

/// Both ends of a connection, as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAddresses {
    /// The address of this host.
    pub local: SocketAddr,
    /// The address that was connected to.
    pub peer: SocketAddr,
}

/// A version of the PROXY protocol (haproxy's doc/proxy-protocol.txt).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// A line of text (section 2.1).
    V1,
    /// A binary header (section 2.2).
    V2,
}

impl ProxyProtocol {
    /// Appends the header. Without addresses, as for unix sockets, the header states that none are known.
    ///
    /// # Panics
    /// If the addresses are of two families, which those of a connection never are.
    pub fn write(self, ends: Option<ConnectionAddresses>, out: &mut Vec<u8>) {
        let header = match ends {
            Some(ends) => ProxyHeader::with_address(ProxiedAddress::stream(ends.local, ends.peer)),
            None => ProxyHeader::with_local(),
        };
        let written = match self {
            Self::V1 => header.encode_v1(out),
            Self::V2 => header.encode_v2(out),
        };
        written.expect("a connection has two addresses of one family, and a vector has room");
    }
}

/// The request for a tunnel, built once.
#[derive(Debug)]
pub(super) struct ProxyTunnel {
    request: Vec<u8>,
}

impl ProxyTunnel {
    /// Requests a tunnel through `proxy` to the server of `url` (RFC 9110 section 9.3.6).
    pub(super) fn new(proxy: &Url, url: &Url) -> Result<Self, TargetConfigError> {
        let authority = url.authority();
        let user = match &proxy.user {
            Some(user) => format!("{}\r\n", authorization("Proxy-Authorization", user)?),
            None => String::new(),
        };
        let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{user}User-Agent: fathom\r\n\r\n");
        Ok(Self { request: request.into_bytes() })
    }

    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }
}

/// Reads the answer of a proxy.
#[derive(Debug, Default)]
pub(super) struct TunnelResponse {
    partial: Vec<u8>,
}

impl TunnelResponse {
    /// Returns whether the tunnel is established. Bytes after the proxy's answer are a fault, because nothing has been sent to
    /// the server yet.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<bool, ProxyFault> {
        self.partial.extend_from_slice(bytes);
        loop {
            let Some((status, length)) = head(&self.partial)? else { return Ok(false) };
            self.partial.drain(..length);
            match status {
                // Interim answers precede the final one (RFC 9110 section 15.2).
                100 | 102..=199 => {}
                200..=299 if self.partial.is_empty() => return Ok(true),
                200..=299 => return Err(ProxyFault::Surplus),
                _ => return Err(ProxyFault::Refused(status)),
            }
        }
    }
}

/// The status and the length of a complete head.
fn head(bytes: &[u8]) -> Result<Option<(u16, usize)>, ProxyFault> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let malformed = |error: httparse::Error| ProxyFault::Malformed(error.into());
    match response.parse(&bytes[..bytes.len().min(HEAD_MAX)]).map_err(malformed)? {
        httparse::Status::Complete(length) => Ok(Some((response.code.unwrap_or(0), length))),
        httparse::Status::Partial if bytes.len() >= HEAD_MAX => Err(ProxyFault::Malformed(Malformed::HeadTooLong)),
        httparse::Status::Partial => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(announcement: ProxyProtocol, local: &str, peer: &str) -> Vec<u8> {
        let mut out = b"before".to_vec();
        announcement
            .write(Some(ConnectionAddresses { local: local.parse().unwrap(), peer: peer.parse().unwrap() }), &mut out);
        out.split_off(6)
    }

    #[test]
    fn version_1_is_the_line_of_the_specification() {
        // The example of section 2.1.
        let line = announced(ProxyProtocol::V1, "192.168.0.1:56324", "192.168.0.11:443");
        assert_eq!(line, b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n");
        let line = announced(ProxyProtocol::V1, "[2001:db8::1]:1", "[2001:db8::2]:65535");
        assert_eq!(line, b"PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n");
        let mut out = Vec::new();
        ProxyProtocol::V1.write(None, &mut out);
        assert_eq!(out, b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_is_the_header_of_the_specification() {
        // Section 2.2: signature, version and command, family and transport, length, addresses, ports.
        const SIGNATURE: [u8; 12] = [0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a];
        let header = announced(ProxyProtocol::V2, "192.168.0.1:56324", "192.168.0.11:443");
        let rest = [0x21, 0x11, 0, 12, 192, 168, 0, 1, 192, 168, 0, 11, 0xdc, 0x04, 0x01, 0xbb];
        assert_eq!(header, [&SIGNATURE[..], &rest].concat());
        let header = announced(ProxyProtocol::V2, "[::1]:1", "[::2]:2");
        let mut rest = vec![0x21, 0x21, 0, 36];
        rest.extend([[0; 15].as_slice(), &[1], &[0; 15], &[2], &[0, 1, 0, 2]].concat());
        assert_eq!(header, [&SIGNATURE[..], &rest].concat());
        let mut out = Vec::new();
        ProxyProtocol::V2.write(None, &mut out);
        assert_eq!(out, [&SIGNATURE[..], &[0x20, 0x00, 0, 0]].concat());
    }

    #[test]
    fn a_tunnel_is_asked_for_by_host_and_port() {
        let tunnel = |proxy: &str, url: &str| {
            let tunnel = ProxyTunnel::new(&proxy.parse().unwrap(), &url.parse().unwrap()).unwrap();
            String::from_utf8(tunnel.request).unwrap()
        };
        assert_eq!(
            tunnel("http://p:3128", "https://a/x"),
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nUser-Agent: fathom\r\n\r\n"
        );
        assert_eq!(
            tunnel("http://me:pw@p:3128", "https://[::1]:8443/"),
            "CONNECT [::1]:8443 HTTP/1.1\r\nHost: [::1]:8443\r\nProxy-Authorization: Basic bWU6cHc=\r\nUser-Agent: fathom\r\n\r\n"
        );
    }

    #[test]
    fn the_answer_of_a_proxy_is_understood_wherever_it_is_cut() {
        let refused = |status| Err(ProxyFault::Refused(status));
        let cases: [(&str, Result<bool, ProxyFault>); 8] = [
            ("HTTP/1.1 200 Connection established\r\n\r\n", Ok(true)),
            ("HTTP/1.0 200 OK\r\nVia: x\r\nContent-Length: 5\r\n\r\n", Ok(true)),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 Tunnel\r\n\r\n", Ok(true)),
            ("HTTP/1.1 200 OK\r\n", Ok(false)),
            ("HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\n", refused(407)),
            ("HTTP/1.1 502 Bad Gateway\r\n\r\n", refused(502)),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", refused(101)),
            ("SSH-2.0-x\r\n\r\n", Err(ProxyFault::Malformed(Malformed::Version))),
        ];
        for (text, expected) in cases {
            for size in [1, 2, 7, text.len()] {
                let mut answer = TunnelResponse::default();
                let mut pieces = text.as_bytes().chunks(size).map(|piece| answer.take(piece));
                let end = pieces.find(|taken| *taken != Ok(false)).unwrap_or(Ok(false));
                assert_eq!(end, expected, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn bytes_behind_the_answer_and_endless_answers_are_faults() {
        let mut answer = TunnelResponse::default();
        assert_eq!(answer.take(b"HTTP/1.1 200 OK\r\n\r\n\x16\x03"), Err(ProxyFault::Surplus));
        let mut answer = TunnelResponse::default();
        assert_eq!(answer.take(b"HTTP/1.1 407 No\r\n\r\n<html>"), Err(ProxyFault::Refused(407)));
        let mut answer = TunnelResponse::default();
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &vec![b'x'; HEAD_MAX]].concat();
        assert_eq!(answer.take(&endless), Err(ProxyFault::Malformed(Malformed::HeadTooLong)));
    }
}
