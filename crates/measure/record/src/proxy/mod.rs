//! The proxy: it accepts clients, looks into their tunnels, passes their requests on, and tells a recording.

mod answers;
mod error;
mod keepalive;
mod own_page;
mod pass_on;
mod service;
mod upstream;

use std::{
    net::{IpAddr, TcpListener},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use fathom_http::host_names::HostNames;
use fathom_sys::{policy::Network, process::threads};
use hyper_util::rt::TokioIo;
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, oneshot},
};

pub use self::error::ProxyError;
use self::{
    keepalive::find_vanished,
    service::{ConnectionService, HEAD_TIME_MAX, serve},
    upstream::Upstream,
};
use crate::{
    certificates::{CertificateAuthority, LeafCertificates},
    recording::Recording,
    verification::Verification,
};

/// Connections at once: browsers open about six per host.
const CONNECTIONS_MAX: usize = 512;
/// What still runs at the end is given this long, mostly look-ups of names.
const END_MAX: Duration = Duration::from_millis(500);
/// After a failed accept, such as without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a user asks of the proxy.
#[derive(Debug, Default)]
pub struct ProxySettings {
    /// Others pass through unseen.
    pub hosts: HostNames,
    /// Who may use it; everybody who reaches it if there are none.
    pub clients: Vec<Network>,
    pub verification: Verification,
}

/// A proxy that runs in a thread of its own until it is stopped.
pub struct Proxy {
    recording: Arc<Recording>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// Serves the clients of a listener.
    ///
    /// # Errors
    /// Nothing runs then.
    pub fn start(
        listener: TcpListener,
        authority: CertificateAuthority,
        settings: ProxySettings,
    ) -> Result<Self, ProxyError> {
        listener.set_nonblocking(true)?;
        let recording = Arc::new(Recording::default());
        let own = listener.local_addr()?;
        let core = Arc::new(ProxyCore {
            leaves: LeafCertificates::new(&authority)?,
            authority,
            upstream: Upstream::new(own, settings.verification)?,
            settings,
            recording: Arc::clone(&recording),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = threads::start("proxy", move || run(runtime, listener, &core, stopped))?;
        Ok(Self { recording, stop, thread })
    }

    /// What it has recorded so far.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Whether it has ended by itself, which it does only by a defect.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes all connections; exchanges that are not complete are in the recording as such.
    #[must_use]
    pub fn stop(self) -> Arc<Recording> {
        // It may have ended already.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.recording
    }
}

/// What all connections share.
struct ProxyCore {
    authority: CertificateAuthority,
    leaves: LeafCertificates,
    upstream: Upstream,
    settings: ProxySettings,
    recording: Arc<Recording>,
    places: Arc<Semaphore>,
}

impl ProxyCore {
    fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.settings.clients.is_empty() || self.settings.clients.iter().any(|network| network.contains(client))
    }
}

fn run(runtime: Runtime, listener: TcpListener, core: &Arc<ProxyCore>, stopped: oneshot::Receiver<()>) {
    runtime.block_on(async {
        tokio::select! {
            () = accept(listener, core) => {}
            _ = stopped => {}
        }
    });
    runtime.shutdown_timeout(END_MAX);
}

async fn accept(listener: TcpListener, core: &Arc<ProxyCore>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return core.recording.tell(format!("the proxy cannot listen: {error}")),
    };
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                core.recording.tell(format!("a connection cannot be accepted: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let place = Arc::clone(&core.places).try_acquire_owned();
        let Some(place) = place.ok().filter(|_| core.admits(client.ip())) else {
            core.recording.count(|counts| counts.n_turned_away += 1);
            core.recording.tell(if core.admits(client.ip()) {
                format!("more than {CONNECTIONS_MAX} connections at once: others are closed")
            } else {
                format!("{} may not use the proxy: add it with --from", client.ip())
            });
            continue;
        };
        // Answers are passed on as they come.
        let _ = stream.set_nodelay(true);
        find_vanished(&stream);
        let service = ConnectionService::new(Arc::clone(core), place);
        tokio::spawn(async move {
            // What tells the versions apart waits without a limit of its own.
            let first = tokio::time::timeout(HEAD_TIME_MAX, stream.peek(&mut [0])).await;
            if first.is_ok_and(|read| read.is_ok_and(|n| n > 0)) {
                serve(TokioIo::new(stream), service).await;
            }
        });
    }
}
