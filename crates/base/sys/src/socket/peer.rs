//! Who is at the other end of a UNIX socket (`SO_PEERCRED`, unix(7)).

use std::os::fd::AsFd;

use crate::{Error, Result};

/// The process that connected, or that listened, at the time when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its pid, as seen from the pid namespace of this process; 0 if it is in another one.
    pub pid: u32,
    /// Its user.
    pub user: u32,
}

/// Returns the process at the other end.
///
/// # Errors
/// If the descriptor is not a connected UNIX socket.
pub fn peer_process(stream: impl AsFd) -> Result<PeerProcess> {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    let peer = peer.map_err(|errno| Error::new("getsockopt(SO_PEERCRED)", errno))?;
    Ok(PeerProcess { pid: peer.pid.as_raw_nonzero().get().unsigned_abs(), user: peer.uid.as_raw() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = peer_process(&one).unwrap();
        assert_eq!((peer.pid, peer.user), (std::process::id(), crate::process::effective_user()));
    }
}
