//! Why pktgen cannot do what it was asked.

use std::{io, path::PathBuf};

use super::status::StatusError;

/// An error of pktgen, for the user who must act on it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no pktgen, or has not loaded it.
    #[error("there is no kernel pktgen at {}", .0.display())]
    Absent(PathBuf),
    /// There is no thread for this processor.
    #[error("pktgen has no thread {thread}: it has one for each of {n_threads} processors, from 0")]
    NoThread {
        thread: usize,
        /// The number of threads.
        n_threads: usize,
    },
    /// pktgen is in use, and everything starts and stops together.
    #[error("pktgen's thread {thread} has devices that are not ours: {devices}")]
    Occupied { thread: usize, devices: String },
    /// A command was refused: by its return value or, as often, only by a text.
    #[error("pktgen refused `{command}` for {file}: {said}")]
    Refused {
        /// The file of the command: a device, `kpktgend_0`, `pgctrl`.
        file: String,
        command: String,
        /// The answer of the kernel.
        said: String,
        /// What to do instead.
        fix: String,
    },
    /// The text of pktgen has an unknown form.
    #[error("cannot understand the text of pktgen in {file}")]
    Block {
        file: String,
        /// What is wrong with it.
        #[source]
        cause: StatusError,
    },
    /// A file operation failed.
    #[error("cannot {what}")]
    File {
        /// The operation and its object.
        what: String,
        /// The answer of the kernel.
        #[source]
        cause: io::Error,
    },
    /// It did not stop when it was told to.
    #[error("pktgen has not stopped {0} after the command")]
    Runaway(fathom_model::units::Nanos),
}

impl Error {
    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Absent(_) => "sudo modprobe pktgen (CONFIG_NET_PKTGEN)".to_owned(),
            Self::NoThread { n_threads, .. } => format!("threads 0 to {}", n_threads.saturating_sub(1)),
            Self::Occupied { .. } => {
                "wait until they are done; if they are not needed: echo reset > /proc/net/pktgen/pgctrl".to_owned()
            }
            Self::Refused { fix, .. } => fix.clone(),
            Self::File { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => {
                "needs CAP_NET_ADMIN as root".to_owned()
            }
            Self::Runaway(_) => "echo stop > /proc/net/pktgen/pgctrl".to_owned(),
            Self::Block { .. } | Self::File { .. } => return None,
        })
    }
}
