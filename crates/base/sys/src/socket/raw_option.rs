//! Socket options as plain memory, and errors with the name of the call.

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{AsFd, AsRawFd as _},
    ptr,
};

use crate::{Error, Result};

/// Adds the name of the call to an error: `.map_err(error_of("setsockopt(TCP_NODELAY)"))`.
pub fn error_of<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::new(call, error)
}

/// The number of datagrams that this socket has dropped so far, usually because its buffer was full; wraps around.
///
/// # Errors
/// `getsockopt(SO_MEMINFO)`: Linux before 4.12.
pub fn drops(socket: impl AsFd) -> Result<u32> {
    /// `SK_MEMINFO_DROPS` of `include/uapi/linux/sock_diag.h`, the last of nine counters.
    const DROPS: usize = 8;
    let mut counters = [0_u32; DROPS + 1];
    get(socket, (libc::SOL_SOCKET, libc::SO_MEMINFO), &mut counters).map_err(error_of("getsockopt(SO_MEMINFO)"))?;
    Ok(counters[DROPS])
}

/// A value that the kernel may read and write as plain memory: no padding, every bit pattern valid.
pub(crate) trait Plain: Copy {}
impl Plain for c_int {}
impl Plain for u32 {}
impl Plain for u64 {}
impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Attaches a program of classic BPF that a socket option takes (`struct sock_fprog`).
pub(crate) fn set_program(socket: impl AsFd, name: c_int, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let length = libc::c_ushort::try_from(program.len()).expect("a program is a few instructions long");
    let value = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let length = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).expect("an option is a few bytes long");
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` points to `len` instructions, which the kernel copies and only reads.
    let status = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, ptr::from_ref(&value).cast(), length) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn length<T>(values: &[T]) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of_val(values)).expect("an option is a few bytes long")
}

pub(crate) fn set<T: Plain>(socket: impl AsFd, (level, name): (c_int, c_int), value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).expect("an option is a few bytes long");
    let value: *const c_void = ptr::from_ref(value).cast();
    // SAFETY: `value` points to `length` readable bytes, and the kernel keeps no pointer.
    let status = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value, length) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fills `values`; the kernel may leave a part unchanged.
pub(crate) fn get<T: Plain>(socket: impl AsFd, (level, name): (c_int, c_int), values: &mut [T]) -> io::Result<()> {
    let mut length = length(values);
    let values: *mut c_void = values.as_mut_ptr().cast();
    // SAFETY: `values` points to `length` writable bytes, and `T` accepts every bit pattern.
    let status = unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, values, &raw mut length) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
