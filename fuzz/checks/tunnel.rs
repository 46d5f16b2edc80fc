//! The answer of a proxy is understood the same in one piece and byte by byte, and makes a tunnel or a fault.

use std::sync::{Arc, OnceLock};

use fathom_http::dial::{Channel, Desk, Dialing, Fault, ProxyFault};
use fathom_model::{Settings, units::Nanos};

/// What a channel makes of bytes, up to the point where the tunnel is there.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Waiting,
    Tunnel,
    Fault(ProxyFault),
}

fn channel() -> (Channel, Desk) {
    static DIALING: OnceLock<Arc<Dialing>> = OnceLock::new();
    let dialing = DIALING.get_or_init(|| {
        let options = [("url", "https://a.invalid/"), ("proxy", "http://127.0.0.1:1"), ("insecure", "true")];
        let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        Arc::new(
            Dialing::prepare((&settings, &fathom_sys::policy::Policy::anything()), None, None)
                .expect("the options are sound"),
        )
    });
    let dialer = dialing.dialer(0, 1).expect("an address needs no lookup");
    let (mut channel, mut desk) = (dialer.channel(0).expect("TLS can begin"), Desk::default());
    channel.opened(None, Nanos::ZERO, &mut desk).expect("a tunnel can be asked for");
    desk.out.clear();
    (channel, desk)
}

fn outcome(pieces: &mut dyn Iterator<Item = &[u8]>) -> Outcome {
    let (mut channel, mut desk) = channel();
    for piece in pieces {
        match channel.take(piece, Nanos::ZERO, &mut desk) {
            // What is right behind the answer comes before our first word.
            Err(Fault::Proxy(ProxyFault::Surplus)) => return Outcome::Tunnel,
            Err(Fault::Proxy(fault)) => return Outcome::Fault(fault),
            Err(fault) => panic!("{fault} before the tunnel"),
            Ok(_) if !desk.out.is_empty() => return Outcome::Tunnel,
            Ok(_) => {}
        }
    }
    assert_eq!(channel.cut(), Some(Fault::Proxy(ProxyFault::Closed)));
    Outcome::Waiting
}

pub(crate) fn tunnel(bytes: &[u8]) {
    assert_eq!(outcome(&mut [bytes].into_iter()), outcome(&mut bytes.chunks(1)), "{}", bytes.escape_ascii());
}
