//! The answer of a proxy is understood the same in one piece and byte by byte, and makes a tunnel or a fault.

use std::sync::{Arc, OnceLock};

use fathom_http::target::{Channel, ConnectFault, ProxyFault, TargetConfig, TlsBuffers};
use fathom_model::{Settings, units::Nanos};

/// What a channel makes of bytes, up to the point where the tunnel is there.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Waiting,
    Tunnel,
    Fault(ProxyFault),
}

fn channel() -> (Channel, TlsBuffers) {
    static TARGET: OnceLock<Arc<TargetConfig>> = OnceLock::new();
    let config = TARGET.get_or_init(|| {
        let options = [("url", "https://a.invalid/"), ("proxy", "http://127.0.0.1:1"), ("insecure", "true")];
        let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        Arc::new(
            TargetConfig::prepare((&settings, &fathom_sys::policy::Policy::anything()), None, None)
                .expect("the options are sound"),
        )
    });
    let resolver = config.resolver(0, 1).expect("an address needs no lookup");
    let (mut channel, mut buffers) = (resolver.channel(0).expect("TLS can begin"), TlsBuffers::default());
    channel.on_connected(None, Nanos::ZERO, &mut buffers).expect("a tunnel can be asked for");
    buffers.out.clear();
    (channel, buffers)
}

fn outcome(pieces: &mut dyn Iterator<Item = &[u8]>) -> Outcome {
    let (mut channel, mut buffers) = channel();
    for piece in pieces {
        match channel.receive(piece, Nanos::ZERO, &mut buffers) {
            // What is right behind the answer comes before our first word.
            Err(ConnectFault::Proxy(ProxyFault::Surplus)) => return Outcome::Tunnel,
            Err(ConnectFault::Proxy(fault)) => return Outcome::Fault(fault),
            Err(fault) => panic!("{fault} before the tunnel"),
            Ok(_) if !buffers.out.is_empty() => return Outcome::Tunnel,
            Ok(_) => {}
        }
    }
    assert_eq!(channel.fault_if_closed(), Some(ConnectFault::Proxy(ProxyFault::Closed)));
    Outcome::Waiting
}

pub(crate) fn tunnel(bytes: &[u8]) {
    assert_eq!(outcome(&mut [bytes].into_iter()), outcome(&mut bytes.chunks(1)), "{}", bytes.escape_ascii());
}
