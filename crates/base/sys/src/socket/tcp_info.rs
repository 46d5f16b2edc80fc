//! The kernel's state of a TCP connection.
//!
//! The result of `getsockopt(TCP_INFO)` is parsed as bytes at fixed offsets, because the structure grows with the kernel: a field that this
//! kernel
//! does not return is `None`. Offsets are those of `struct tcp_info` in include/uapi/linux/tcp.h, Linux 6.18; needs no privilege.

use std::os::fd::{AsFd, AsRawFd};

use fathom_model::units::{BitsPerSec, Bytes, Nanos, approximate};

use crate::{Error, Result};

/// The state of a connection (RFC 9293 section 3.3.2, with the kernel's numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 9293")]
pub enum TcpState {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    /// A state unknown to this program, by the kernel's number.
    Other(u8),
}

impl From<u8> for TcpState {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Closed,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            other => Self::Other(other),
        }
    }
}

/// The kernel's data on one connection at one moment; counts are since its beginning.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpInfo {
    /// The state of the connection.
    pub state: TcpState,
    /// Retransmissions of the currently outstanding segment after timeouts.
    pub retransmits: u8,
    /// Whether both ends scale their windows (RFC 7323 section 2): without it, a window has at most 64 KiB.
    pub has_window_scaling: bool,
    /// The current retransmission timeout.
    pub rto: Nanos,
    /// The maximum size of sent segments.
    pub snd_mss: Bytes,
    /// The largest segment seen from the peer, as estimated for delayed acknowledgements.
    pub rcv_mss: Bytes,
    /// Segments sent and not yet acknowledged.
    pub unacked: u32,
    /// Segments that the kernel currently considers lost.
    pub lost: u32,
    /// Segments retransmitted and not yet acknowledged.
    pub retrans: u32,
    /// The time since payload arrived, in whole milliseconds; since the connection was opened if none has.
    pub last_data_recv: Nanos,
    /// The path MTU that the connection uses.
    pub pmtu: Bytes,
    /// The smoothed round-trip time (RFC 6298), in whole microseconds.
    pub rtt: Nanos,
    /// The mean deviation of the round-trip time (RFC 6298).
    pub rttvar: Nanos,
    /// The slow-start threshold in segments; `None` before the first loss.
    pub snd_ssthresh: Option<u32>,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// The reordering distance, in segments, beyond which a segment counts as lost.
    pub reordering: u32,
    /// The receiver's estimate of the round-trip time; `None` before it has received data.
    pub rcv_rtt: Option<Nanos>,
    /// The target of the kernel's receive-window auto-tuning.
    pub rcv_space: Bytes,
    /// The total number of retransmitted segments.
    pub total_retrans: u32,
    /// Whether the last delivery rate was limited by the application, not by the network.
    pub delivery_rate_app_limited: Option<bool>,
    /// The kernel's pacing rate; `None` if unlimited.
    pub pacing_rate: Option<BitsPerSec>,
    /// The configured upper bound on `pacing_rate` (`SO_MAX_PACING_RATE`); `None` if there is none.
    pub max_pacing_rate: Option<BitsPerSec>,
    /// Payload acknowledged by the peer (RFC 4898 tcpEStatsAppHCThruOctetsAcked).
    pub bytes_acked: Option<Bytes>,
    /// Payload received in order (RFC 4898 tcpEStatsAppHCThruOctetsReceived).
    pub bytes_received: Option<Bytes>,
    /// Segments sent (RFC 4898 tcpEStatsPerfSegsOut).
    pub segs_out: Option<u32>,
    /// Segments received (RFC 4898 tcpEStatsPerfSegsIn).
    pub segs_in: Option<u32>,
    /// Payload in the send buffer that has not been sent.
    pub notsent: Option<Bytes>,
    /// The minimum round-trip time in the kernel's window of 5 minutes; `None` without a sample.
    pub min_rtt: Option<Nanos>,
    /// Received segments with payload.
    pub data_segs_in: Option<u32>,
    /// Sent segments with payload.
    pub data_segs_out: Option<u32>,
    /// The latest delivery rate of payload; `None` before a sample.
    pub delivery_rate: Option<BitsPerSec>,
    /// Time with data to send, including all kinds of waiting.
    pub busy_time: Option<Nanos>,
    /// The part of `busy_time` in which the peer's window was full.
    pub rwnd_limited: Option<Nanos>,
    /// The part of `busy_time` in which the send buffer was too small.
    pub sndbuf_limited: Option<Nanos>,
    /// Segments delivered, including out-of-order ones.
    pub delivered: Option<u32>,
    /// Delivered segments whose ACK carried an ECN congestion mark.
    pub delivered_ce: Option<u32>,
    /// Payload sent, including retransmissions (RFC 4898 tcpEStatsPerfHCDataOctetsOut).
    pub bytes_sent: Option<Bytes>,
    /// Payload retransmitted (RFC 4898 tcpEStatsPerfOctetsRetrans).
    pub bytes_retrans: Option<Bytes>,
    /// Segments that the peer reported as received twice (RFC 2883).
    pub dsack_dups: Option<u32>,
    /// The number of reordering events.
    pub reord_seen: Option<u32>,
    /// Segments received out of order.
    pub rcv_ooopack: Option<u32>,
    /// The window that the peer currently offers (Linux 5.4).
    pub snd_wnd: Option<Bytes>,
    /// The window currently offered to the peer (Linux 6.2).
    pub rcv_wnd: Option<Bytes>,
}

/// Enough for every field parsed here; the kernel truncates a longer structure.
const LENGTH_MAX: usize = 248;
const LENGTH_ASKED: libc::socklen_t = 248;
/// The length that every kernel since 2.6 returns.
const LENGTH_MIN: usize = 104;
/// A bit of `tcpi_options` (`TCPI_OPT_WSCALE`).
const OPTION_WINDOW_SCALING: u8 = 4;
/// `tcpi_snd_ssthresh` before the first loss (`TCP_INFINITE_SSTHRESH`).
const NO_SSTHRESH: u32 = 0x7fff_ffff;

/// The returned bytes, parsed by offset.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.0.get(offset..)?.first_chunk()?))
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(*self.0.get(offset..)?.first_chunk()?))
    }

    fn bytes(&self, offset: usize) -> Option<Bytes> {
        self.u64(offset).map(Bytes)
    }

    fn small_bytes(&self, offset: usize) -> Option<Bytes> {
        self.u32(offset).map(|count| Bytes(count.into()))
    }

    fn micros(&self, offset: usize) -> Option<Nanos> {
        self.u32(offset).map(|span| Nanos::from_micros(span.into()))
    }

    fn long_micros(&self, offset: usize) -> Option<Nanos> {
        self.u64(offset).map(Nanos::from_micros)
    }

    /// A rate in bytes per second; the value `none` means no rate.
    fn rate(&self, offset: usize, none: u64) -> Option<BitsPerSec> {
        self.u64(offset).filter(|&rate| rate != none).and_then(|rate| BitsPerSec::new(approximate(rate) * 8.0))
    }
}

impl TcpInfo {
    /// Queries the kernel; works from any thread for any TCP socket of this process.
    ///
    /// # Errors
    /// `getsockopt(TCP_INFO)`, if it is not a TCP socket.
    pub fn of(socket: impl AsFd) -> Result<Self> {
        let mut bytes = [0_u8; LENGTH_MAX];
        let mut length: libc::socklen_t = LENGTH_ASKED;
        // SAFETY: the pointers are to live local variables, and `length` is the size of `bytes`.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(Error::last("getsockopt(TCP_INFO)"));
        }
        let length = usize::try_from(length).unwrap_or(LENGTH_MAX).min(LENGTH_MAX);
        Self::parse(&bytes[..length])
            .ok_or_else(|| Error::new("getsockopt(TCP_INFO)", std::io::Error::other("the answer is too short")))
    }

    /// Parses the structure up to its length; `None` if it is shorter than that of any kernel.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let f = Fields(bytes);
        (bytes.len() >= LENGTH_MIN).then_some(())?;
        Some(Self {
            state: bytes[0].into(),
            retransmits: bytes[2],
            has_window_scaling: bytes[5] & OPTION_WINDOW_SCALING != 0,
            rto: f.micros(8)?,
            snd_mss: f.small_bytes(16)?,
            rcv_mss: f.small_bytes(20)?,
            unacked: f.u32(24)?,
            lost: f.u32(32)?,
            retrans: f.u32(36)?,
            last_data_recv: f.u32(52).map(|span| Nanos::from_millis(span.into()))?,
            pmtu: f.small_bytes(60)?,
            rtt: f.micros(68)?,
            rttvar: f.micros(72)?,
            snd_ssthresh: f.u32(76).filter(|&segments| segments < NO_SSTHRESH),
            snd_cwnd: f.u32(80)?,
            reordering: f.u32(88)?,
            rcv_rtt: f.micros(92).filter(|&span| span > Nanos::ZERO),
            rcv_space: f.small_bytes(96)?,
            total_retrans: f.u32(100)?,
            delivery_rate_app_limited: f.u64(160).map(|_| bytes[7] & 1 == 1),
            pacing_rate: f.rate(104, u64::MAX),
            max_pacing_rate: f.rate(112, u64::MAX),
            bytes_acked: f.bytes(120),
            bytes_received: f.bytes(128),
            segs_out: f.u32(136),
            segs_in: f.u32(140),
            notsent: f.small_bytes(144),
            min_rtt: f.u32(148).filter(|&span| span != u32::MAX).map(|span| Nanos::from_micros(span.into())),
            data_segs_in: f.u32(152),
            data_segs_out: f.u32(156),
            delivery_rate: f.rate(160, 0),
            busy_time: f.long_micros(168),
            rwnd_limited: f.long_micros(176),
            sndbuf_limited: f.long_micros(184),
            delivered: f.u32(192),
            delivered_ce: f.u32(196),
            bytes_sent: f.bytes(200),
            bytes_retrans: f.bytes(208),
            dsack_dups: f.u32(216),
            reord_seen: f.u32(220),
            rcv_ooopack: f.u32(224),
            snd_wnd: f.small_bytes(228),
            rcv_wnd: f.small_bytes(232),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream, UdpSocket},
    };

    use super::*;

    #[test]
    fn the_kernel_counts_what_was_sent_over_loopback() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[0; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        let (near, far) = (TcpInfo::of(&near).unwrap(), TcpInfo::of(&far).unwrap());
        assert_eq!(near.state, TcpState::Established);
        assert!(near.has_window_scaling, "the kernel's default");
        assert_eq!(near.bytes_sent, Some(Bytes(1000)));
        assert_eq!(far.bytes_received, Some(Bytes(1000)));
        assert!(far.last_data_recv < Nanos::from_secs(1), "{far:?}");
        assert_eq!(near.total_retrans, 0);
        assert_eq!(near.snd_ssthresh, None);
        assert!(near.snd_mss > Bytes(500) && near.pmtu > near.snd_mss, "{near:?}");
        assert!(near.rtt > Nanos::ZERO && near.rtt < Nanos::from_secs(1), "{near:?}");
        assert!(near.snd_wnd.unwrap() > Bytes(1000) && near.snd_cwnd > 0);
    }

    #[test]
    fn fields_that_the_kernel_did_not_return_are_missing() {
        let info = TcpInfo::parse(&[0xff; LENGTH_MIN]).unwrap();
        assert_eq!(info.state, TcpState::Other(255));
        assert_eq!((info.bytes_acked, info.min_rtt, info.delivery_rate_app_limited), (None, None, None));
        let info = TcpInfo::parse(&[1; 230]).unwrap();
        assert_eq!(info.rcv_ooopack, Some(0x0101_0101));
        assert_eq!(info.snd_wnd, None, "two of its four bytes are there");
        assert_eq!(TcpInfo::parse(&[0; LENGTH_MIN - 1]), None);
    }

    #[test]
    fn values_that_stand_for_nothing_are_missing() {
        let info = TcpInfo::parse(&[0xff; LENGTH_MAX]).unwrap();
        assert_eq!((info.snd_ssthresh, info.min_rtt, info.pacing_rate), (None, None, None));
        let info = TcpInfo::parse(&[0; LENGTH_MAX]).unwrap();
        assert_eq!((info.rcv_rtt, info.delivery_rate), (None, None));
    }

    #[test]
    fn a_udp_socket_is_refused_by_name() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(TcpInfo::of(&socket).unwrap_err().to_string(), "getsockopt(TCP_INFO)");
    }
}
