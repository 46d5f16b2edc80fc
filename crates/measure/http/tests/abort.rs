//! How soon `http_closed` ends when it is aborted. Alone in its process, because it measures a time.

use std::{sync::mpsc, thread};

use fathom_engine::{TestKind, TrialContext};
use fathom_http::HttpClosed;
use fathom_model::{Endpoints, Phases, Role, Settings, Side, names::count, units::Nanos};
use fathom_sys::{clock, policy::Policy};

#[test]
fn an_abort_ends_both_sides_within_200_ms() {
    let phases = Phases {
        warmup_max_ns: Nanos::ZERO,
        is_warmup_whole: false,
        measure_ns: Nanos::from_secs(60),
        interval_ns: Nanos::from_millis(100),
    };
    let role = |side, peer| Role {
        test: "requests".to_owned(),
        kind: "http_closed".to_owned(),
        side,
        settings: Settings::default().complete(HttpClosed.options()).unwrap(),
        phases,
        address: None,
        interface: None,
        peer,
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    };
    let responder = HttpClosed.prepare(&role(Side::Responder, Endpoints::new()), &Policy::anything()).unwrap();
    let initiator = HttpClosed.prepare(&role(Side::Initiator, responder.endpoints()), &Policy::anything()).unwrap();
    let (mut here, there) = (TrialContext::new(clock::now(), phases), TrialContext::new(clock::now(), phases));
    let stops = [here.stop.clone(), there.stop.clone()];
    // The live view shows when requests flow: then it is time to abort.
    let (flowing, seen) = mpsc::sync_channel(1);
    here.live = Some(Box::new(move |_| _ = flowing.try_send(())));
    thread::scope(|scope| {
        let sides =
            [scope.spawn(move || initiator.run(&here).unwrap()), scope.spawn(move || responder.run(&there).unwrap())];
        seen.recv().unwrap();
        let aborted = clock::now();
        stops.iter().for_each(fathom_engine::StopFlag::abort);
        for side in sides {
            let record = side.join().unwrap();
            assert!(!record.complete && record.totals[count::REQUESTS] > 0);
        }
        let took = clock::now() - aborted;
        assert!(took < Nanos::from_millis(200), "{took}");
    });
}
