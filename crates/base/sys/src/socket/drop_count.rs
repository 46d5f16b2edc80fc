//! What a socket has dropped.

use std::os::fd::AsFd;

use super::{get, named};
use crate::Result;

/// How many datagrams this socket has dropped so far, mostly because its buffer was full; it wraps.
///
/// # Errors
/// `getsockopt(SO_MEMINFO)`: Linux before 4.12.
pub fn drops(socket: impl AsFd) -> Result<u32> {
    /// `SK_MEMINFO_DROPS` of `include/uapi/linux/sock_diag.h`, the last of nine counters.
    const DROPS: usize = 8;
    let mut counters = [0_u32; DROPS + 1];
    get(socket, (libc::SOL_SOCKET, libc::SO_MEMINFO), &mut counters).map_err(named("getsockopt(SO_MEMINFO)"))?;
    Ok(counters[DROPS])
}
