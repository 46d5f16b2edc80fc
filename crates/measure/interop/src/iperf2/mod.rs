//! iperf 2's protocol (2.0.5 to 2.2.1), both roles.
//!
//! There is no control connection: a client says what it wants at the beginning of its data, and each flow stands for itself. Over TCP
//! it ends with the connection, over UDP with a datagram of a negative number, which the server answers with its report. This
//! module knows neither plans nor output.

mod client;
mod data;
mod error;
mod flow;
mod flow_table;
mod server;
mod socket_setup;
mod transit;
mod wire;

pub use client::{Client, ClientOptions, ServerProof};
pub use error::Error;
pub use flow::{
    ConnectionFacts, FlowCounts, FlowGroup, FlowInfo, FlowInterval, FlowObserver, FlowOutcome, FlowRole, READ_BINS,
};
pub use flow_table::FlowTable;
pub use server::{BackTraffic, ServedProtocols, Server, ServerOptions};
pub use socket_setup::SocketSetup;
pub use wire::{
    ACK_LEN, ACK_TIMES_LEN, AckTimes, BURST_LEN, BurstHeader, BurstReader, ClientHeader, DATAGRAM_LEN, DatagramNumber,
    HEADER_MAX, HeaderLen, REPORT_LEN, REPORT_SHORT_LEN, ServerAck, ServerReport, TestAmount, TestMode, TransitTimes,
    UDP_HEADER_LEN, header_len, put_sent_time, read_datagram, sent_time,
};

pub(crate) use data::{FlowContext, FlowCounter};

pub use crate::iperf3::{TcpState, TransportProtocol};

/// The default port of an iperf server.
pub const PORT: u16 = 5001;
/// The default length of a write or a read (`-l`).
pub const TCP_LENGTH: usize = 128 << 10;
/// The default lengths of a datagram: they fit into an Ethernet frame over either version of IP.
pub const UDP_LENGTH_V4: usize = 1470;
pub const UDP_LENGTH_V6: usize = 1450;
/// The longest datagram payload over IPv4.
pub const UDP_LENGTH_MAX: usize = 65_507;
/// The default rate of a UDP flow in bits per second.
pub const UDP_RATE: u64 = 1 << 20;
