//! Sessions to be resumed, of one worker with one server.
//!
//! The store of the library keeps eight tickets of TLS 1.3 for a server, and a ticket is used once (RFC 8446 appendix C.4). A
//! load opens hundreds of connections at once, of which all but eight would be full handshakes.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustls::{
    NamedGroup,
    client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::ServerName,
};

/// Enough for the connections that one worker has under way at once; a ticket takes some hundred bytes.
const TICKETS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Remembered {
    group: Option<NamedGroup>,
    old: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

/// What was agreed on with the one server of a route; the lock is the library's wish and never contended.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Remembered>);

impl Sessions {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        // Each change is one step, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.remembered().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.remembered().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.remembered().old = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.remembered().old.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.remembered().old = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut remembered = self.remembered();
        if remembered.tickets.len() == TICKETS_MAX {
            remembered.tickets.pop_front();
        }
        remembered.tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.remembered().tickets.pop_back()
    }
}
