//! One run at a time on a host: a run holds it, and another run learns who that is.
//!
//! The hold is an abstract Unix socket (unix(7)). Its name exists once per network namespace, and that is what a host is to a test. It
//! needs no file, and the kernel frees it with its process, kill -9 included.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use fathom_sys::socket::{Domain, SockAddr, Socket, Type};

use crate::{AgentFailure, ErrorClass, threads};

const NAME: &str = "fathom-host";
/// The wait for the holder's name: it is a thread of a process on the same machine, which may be stopped.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
const SILENT_HOLDER: &str = "a run that does not answer";
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most of a holder's name that is read, since any user may have the socket.
const HOLDER_MAX: u64 = 200;

/// The hold of a run on this host; dropping it frees the host.
pub(super) struct HostHold {
    is_over: Arc<AtomicBool>,
}

impl HostHold {
    /// Takes the host for a run, and tells others its name.
    pub(super) fn take(run: String) -> Result<Self, AgentFailure> {
        let listener = SocketAddr::from_abstract_name(NAME)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|cause| if cause.kind() == io::ErrorKind::AddrInUse { held() } else { cannot_hold(&cause) })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_freed = Arc::clone(&is_over);
        let telling = threads::start("hold", move || {
            for asking in listener.incoming() {
                if is_freed.load(Ordering::Acquire) {
                    return;
                }
                match asking {
                    // Who asks and leaves does not matter.
                    Ok(mut asking) => drop(asking.write_all(run.as_bytes())),
                    // Without descriptors, the next attempt would fail at once.
                    Err(_) => thread::sleep(ACCEPT_PAUSE),
                }
            }
        });
        telling.map(|_| Self { is_over }).map_err(|cause| cannot_hold(&cause))
    }
}

impl Drop for HostHold {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread, which owns the listener.
        let _ = ask();
    }
}

/// Returns the run that holds this host, if there is one.
pub(super) fn holder() -> Option<String> {
    let mut holder = String::new();
    let stream = match ask() {
        Ok(stream) => stream,
        // Somebody has the name and accepts nothing.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(SILENT_HOLDER.to_owned()),
        Err(_) => return None,
    };
    // A holder that is stopped does not answer; it still holds the host.
    let _ =
        stream.set_read_timeout(Some(ASK_TIMEOUT)).and_then(|()| stream.take(HOLDER_MAX).read_to_string(&mut holder));
    let shown: String = holder.chars().filter(|c| !c.is_control()).collect();
    Some(if shown.is_empty() { SILENT_HOLDER.to_owned() } else { shown })
}

/// Connects to the holder. Fails with `WouldBlock` if its queue of connections is full.
fn ask() -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(format!("\0{NAME}"))?)?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

fn held() -> AgentFailure {
    let holder = holder().unwrap_or_else(|| "a run that has just ended".to_owned());
    AgentFailure {
        hint: Some("wait until that run has ended, or end it".to_owned()),
        ..AgentFailure::new(ErrorClass::Preflight, format!("the host is in use by {holder}"))
    }
}

fn cannot_hold(cause: &io::Error) -> AgentFailure {
    AgentFailure {
        causes: vec![cause.to_string()],
        ..AgentFailure::new(ErrorClass::Preflight, "the host cannot be reserved for this run")
    }
}
