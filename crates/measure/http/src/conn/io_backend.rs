//! Chooses the reactor of a load: the usual one, or the one that reads the kernel's timestamps.

use fathom_engine::{Batching, Error, IoBackend, LoadModel, ReactorKind};
use fathom_model::{Note, Settings};

/// The backend that the settings ask for, as far as the kernel supports it.
pub(crate) fn select_io_backend(settings: &Settings, model: LoadModel) -> Result<IoBackend, Error> {
    if settings.text("timestamps").as_deref() == Some("kernel") {
        timestamping_backend(settings)
    } else {
        IoBackend::of(settings, model)
    }
}

fn timestamping_backend(settings: &Settings) -> Result<IoBackend, Error> {
    if settings.text("reactor").as_deref() == Some("io_uring") {
        return Err(unavailable_error(
            "the kernel's timestamps are read over epoll only",
            "leave out timestamps or reactor",
        ));
    }
    if settings.count("pipeline").is_some_and(|depth| depth > 1) {
        return Err(unavailable_error(
            "the kernel's timestamps are for one request at a time",
            "leave out timestamps or pipeline",
        ));
    }
    if settings.text("unix").is_some() {
        return Err(unavailable_error("the kernel stamps no bytes of unix sockets", "leave out timestamps or unix"));
    }
    let text = "epoll, with the kernel's timestamps of the departure and arrival of bytes".to_owned();
    let note = Note::new("reactor", text);
    Ok(IoBackend { reactor: ReactorKind::Stamped, batching: Batching::One, note })
}

fn unavailable_error(what: &str, hint: &str) -> Error {
    Error::Unsupported { what: what.to_owned(), hint: Some(hint.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_go_together_is_refused() {
        let way = |options: &[(&str, &str)]| {
            let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
            select_io_backend(&settings, LoadModel::Closed)
        };
        for options in [
            [("reactor", "epoll"), ("batch", "8")],
            [("reactor", "io_uring"), ("timestamps", "kernel")],
            [("pipeline", "2"), ("timestamps", "kernel")],
            [("unix", "/tmp/s"), ("timestamps", "kernel")],
        ] {
            assert!(way(&options).is_err(), "{options:?}");
        }
        let way = way(&[("timestamps", "kernel"), ("pipeline", "1")]).unwrap();
        assert!(way.reactor == ReactorKind::Stamped && way.note.text.contains("the kernel's timestamps"));
    }
}
