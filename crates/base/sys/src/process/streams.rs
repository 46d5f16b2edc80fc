//! Exclusive use of this process's standard streams.

use std::{
    fs::{File, OpenOptions},
    os::fd::AsFd as _,
};

use rustix::{
    io::fcntl_dupfd_cloexec,
    stdio::{dup2_stdin, dup2_stdout, stderr, stdin, stdout},
};

use crate::{Error, Result};

/// The lowest number for the copies: above the standard streams.
const ABOVE_STANDARD: i32 = 3;

/// Takes over standard input and output. From now on, other readers in this process or its children get end of file, and other output goes
/// to standard error.
///
/// # Errors
/// `fcntl`, `open` and `dup2`, if descriptors have run out or a stream is closed.
pub fn take_standard() -> Result<(File, File)> {
    let input =
        fcntl_dupfd_cloexec(stdin(), ABOVE_STANDARD).map_err(|errno| Error::new("fcntl(F_DUPFD_CLOEXEC)", errno))?;
    let output =
        fcntl_dupfd_cloexec(stdout(), ABOVE_STANDARD).map_err(|errno| Error::new("fcntl(F_DUPFD_CLOEXEC)", errno))?;
    let nothing =
        OpenOptions::new().read(true).open("/dev/null").map_err(|cause| Error::new("open(/dev/null)", cause))?;
    dup2_stdin(nothing.as_fd()).map_err(|errno| Error::new("dup2", errno))?;
    dup2_stdout(stderr()).map_err(|errno| Error::new("dup2", errno))?;
    Ok((File::from(input), File::from(output)))
}
