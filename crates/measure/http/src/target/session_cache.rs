//! Sessions of one worker with one server, for resumption.
//!
//! The library's own store keeps eight TLS 1.3 tickets per server, and a ticket is used once (RFC 8446 appendix C.4). A load
//! opens hundreds of connections at once, and all but eight would need a full handshake.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustls::{
    NamedGroup,
    client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::ServerName,
};

/// Enough for the concurrent connects of one worker; a ticket takes some hundred bytes.
const TICKETS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct CachedSessions {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

/// The sessions with the one server of a route. The library requires the lock, which is never contended.
#[derive(Debug, Default)]
pub(super) struct TlsSessionCache(Mutex<CachedSessions>);

impl TlsSessionCache {
    fn lock(&self) -> MutexGuard<'_, CachedSessions> {
        // Each change is a single step, so a panic elsewhere leaves no partial state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for TlsSessionCache {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.lock().tls12 = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut remembered = self.lock();
        if remembered.tickets.len() == TICKETS_MAX {
            remembered.tickets.pop_front();
        }
        remembered.tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().tickets.pop_back()
    }
}
