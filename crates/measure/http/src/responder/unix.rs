//! A listening socket with a path in the file system.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use fathom_engine::Error;
use fathom_sys::socket::Socket;

/// The path of a socket. It is removed with the last of its listeners, unless another socket has replaced it.
#[derive(Debug)]
pub(super) struct UnixSocketPath {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for UnixSocketPath {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // A socket that cannot be removed counts as stale for the next responder.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Listens at a path that is free or holds a stale socket.
pub(super) fn listen(path: &Path) -> Result<(Socket, UnixSocketPath), Error> {
    let refused = |call: &'static str| {
        move |cause| {
            Error::system(
                format!("listen at {}", path.display()),
                "write permission there",
                fathom_sys::Error::new(call, cause),
            )
        }
    };
    remove_stale(path)?;
    let listener = UnixListener::bind(path).map_err(refused("bind"))?;
    let name = UnixSocketPath { path: path.to_owned(), identity: identity(path).map_err(refused("lstat"))? };
    listener.set_nonblocking(true).map_err(refused("fcntl(O_NONBLOCK)"))?;
    Ok((Socket::from(std::os::fd::OwnedFd::from(listener)), name))
}

/// Removes a stale socket, and nothing else.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let taken = |what: &str| {
        Err(Error::Unsupported {
            what: format!("cannot listen at {}: {what}", path.display()),
            hint: Some("choose another path".to_owned()),
        })
    };
    if !metadata.file_type().is_socket() {
        return taken("the path exists and is not a socket");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // If this fails, so does the bind, which reports the reason.
            let _ = fs::remove_file(path);
            Ok(())
        }
        _ => taken("another process listens there"),
    }
}
