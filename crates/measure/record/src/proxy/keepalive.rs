//! Connections whose other host is gone end, although nothing comes from it any more.

use fathom_model::units::Nanos;
use fathom_sys::socket::socket_options::set_keepalive;
use tokio::net::TcpStream;

/// A peer that is silent for so long is asked whether it is still there, and nine times more at this distance (`tcp_keepalive_probes`).
const KEEPALIVE: Nanos = Nanos::from_secs(30);

/// Has the kernel find out when the host of a silent peer is gone.
pub(super) fn find_vanished(stream: &TcpStream) {
    // A connection works without it, too.
    let _ = set_keepalive(stream, KEEPALIVE);
}

#[cfg(test)]
mod tests {
    use fathom_sys::socket::socket_options::keepalive;

    use super::*;

    #[test]
    fn a_silent_peer_is_asked_whether_it_is_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(TcpStream::connect(address)).unwrap();
        assert_eq!(keepalive(&stream).unwrap(), None);
        find_vanished(&stream);
        assert_eq!(keepalive(&stream).unwrap(), Some(KEEPALIVE));
    }
}
