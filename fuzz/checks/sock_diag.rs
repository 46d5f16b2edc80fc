//! What must hold for every message about a socket that the kernel, or something in its place, may write.
//!
//! Shared by the fuzz target and by the test of `sys` that runs the corpus.

use std::net::SocketAddr;

use fathom_sys::{netlink::sock_diag::DiagSocket, socket::tcp_info::TcpState};

/// The length of `struct inet_diag_msg` (`linux/inet_diag.h`).
const HEADER: usize = 72;
/// `AF_INET` and `AF_INET6`.
const FAMILIES: [u8; 2] = [2, 10];

/// Reads a message: it is a socket exactly if its header is whole and of a family of the internet, however its attributes end.
pub(crate) fn sock_diag(body: &[u8]) {
    let socket = DiagSocket::parse(body);
    let is_socket = body.len() >= HEADER && FAMILIES.contains(&body[0]);
    assert_eq!(socket.is_some(), is_socket, "{}", body.escape_ascii());
    let Some(socket) = socket else { return };
    assert_eq!(socket.local.port().to_be_bytes(), body[4..6]);
    assert_eq!(socket.peer.port().to_be_bytes(), body[6..8]);
    let is_v4 = |address: &SocketAddr| address.is_ipv4();
    assert!(body[0] != FAMILIES[0] || is_v4(&socket.local) && is_v4(&socket.peer), "{socket:?}");
    assert!(socket.state != TcpState::Listen || socket.counts.is_none(), "{socket:?}");
    // What is cut off behind the header takes only the counters away.
    let bare = DiagSocket::parse(&body[..HEADER]).expect("the header is whole");
    assert_eq!(DiagSocket { counts: None, ..socket }, bare);
}
