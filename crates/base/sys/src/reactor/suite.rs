//! The test cases that every reactor must pass: real sockets of this host against peers from the standard library.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixListener, unix::net::UnixStream},
    thread,
    time::Duration,
};

use fathom_model::units::Nanos;

use super::{Batch, Completion, Event, Reactor, Token, Uring, WaitLimit, uring::is_allowed};
use crate::{
    clock,
    policy::{AllowedPeers, Policy, anywhere},
    socket::{self, Domain, Socket, Type},
};

/// No case takes nearly this long; one that does has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// An event without borrowed bytes.
#[derive(Debug)]
enum SeenEvent {
    Connected,
    Received(Vec<u8>),
    Discarded(u64),
    Sent,
    Ended,
    Failed(String, Option<i32>),
    Accepted(Socket),
}

/// A reactor and its events so far.
struct Rig<R> {
    reactor: R,
    seen: Vec<(Token, SeenEvent)>,
}

impl<R: Reactor> Rig<R> {
    fn new(reactor: R) -> Self {
        Self { reactor, seen: Vec::new() }
    }

    /// Converts the next completion.
    fn next(&mut self) -> Option<(Token, SeenEvent)> {
        let Completion { token, at, event } = self.reactor.next()?;
        assert!(at <= clock::now());
        let seen = match event {
            Event::Connected => SeenEvent::Connected,
            Event::Received(piece) => {
                let bytes = self.reactor.bytes(&piece).to_vec();
                self.reactor.release(piece);
                assert!(!bytes.is_empty());
                SeenEvent::Received(bytes)
            }
            Event::Discarded(count) => SeenEvent::Discarded(count),
            Event::Sent => SeenEvent::Sent,
            Event::Ended => SeenEvent::Ended,
            Event::Failed(error) => SeenEvent::Failed(error.to_string(), error.errno()),
            Event::Accepted(socket) => SeenEvent::Accepted(socket),
        };
        Some((token, seen))
    }

    /// Waits and passes every completion to `each`, until it returns true.
    fn drive(&mut self, each: &mut dyn FnMut(&mut R, Token, &SeenEvent) -> bool) {
        let deadline = clock::now() + DEADLINE.into();
        loop {
            self.reactor.wait(WaitLimit { until: deadline, batch: None }).unwrap();
            while let Some((token, seen)) = self.next() {
                assert!(clock::now() < deadline, "{seen:?} of {token:?} is not the end");
                let enough = each(&mut self.reactor, token, &seen);
                self.seen.push((token, seen));
                if enough {
                    return;
                }
            }
            assert!(clock::now() < deadline, "nothing more comes after {:?}", self.kinds());
        }
    }

    /// Waits for a completion that matches.
    fn until(&mut self, mut wanted: impl FnMut(&SeenEvent) -> bool) {
        self.drive(&mut |_, _, seen| wanted(seen));
    }

    /// Collects events while none are expected.
    fn idle(&mut self) {
        let until = clock::now() + Nanos::from_millis(30);
        while clock::now() < until {
            self.reactor.wait(WaitLimit { until, batch: None }).unwrap();
            while let Some(seen) = self.next() {
                self.seen.push(seen);
            }
        }
    }

    fn connected(&mut self, token: Token, address: SocketAddr) {
        self.reactor.connect(token, socket::stream_nonblocking(address).unwrap(), &anywhere(address));
        self.until(|seen| matches!(seen, SeenEvent::Connected));
    }

    /// All bytes received on a token.
    fn received(&self, of: Token) -> Vec<u8> {
        let pieces = self.seen.iter().filter(|(token, _)| *token == of).filter_map(|(_, seen)| match seen {
            SeenEvent::Received(bytes) => Some(bytes.as_slice()),
            _ => None,
        });
        pieces.collect::<Vec<_>>().concat()
    }

    fn discarded(&self) -> u64 {
        self.seen.iter().map(|(_, seen)| if let SeenEvent::Discarded(count) = seen { *count } else { 0 }).sum()
    }

    /// The event types without the bytes.
    fn kinds(&self) -> Vec<(u32, &'static str)> {
        let kind = |seen: &SeenEvent| match seen {
            SeenEvent::Connected => "connected",
            SeenEvent::Received(_) => "received",
            SeenEvent::Discarded(_) => "discarded",
            SeenEvent::Sent => "sent",
            SeenEvent::Ended => "ended",
            SeenEvent::Failed(..) => "failed",
            SeenEvent::Accepted(_) => "accepted",
        };
        self.seen.iter().map(|(token, seen)| (token.0, kind(seen))).collect()
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A peer with timeouts, so that a broken test cannot block forever.
fn accepted(listener: &TcpListener) -> TcpStream {
    let (far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(DEADLINE)).unwrap();
    far.set_write_timeout(Some(DEADLINE)).unwrap();
    far
}

/// A TCP connection whose near end belongs to the reactor.
fn tcp<R: Reactor>(rig: &mut Rig<R>, token: Token) -> TcpStream {
    let (listener, address) = listener();
    rig.connected(token, address);
    accepted(&listener)
}

/// Like `tcp`, over `AF_UNIX`.
fn local<R: Reactor>(rig: &mut Rig<R>, token: Token) -> UnixStream {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    rig.reactor.adopt(token, OwnedFd::from(near).into());
    far.set_read_timeout(Some(DEADLINE)).unwrap();
    far.set_write_timeout(Some(DEADLINE)).unwrap();
    far
}

/// Bytes in which adjacent positions differ, so that a gap or a swap is detected.
fn pattern(count: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| u8::try_from(at).unwrap();
    (0..count).map(|at| byte(at % 251) ^ byte(at / 251 % 256) ^ seed).collect()
}

const A: Token = Token(3);
const B: Token = Token(0);

pub(super) fn a_connection_carries_bytes_both_ways<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    let request = rig.reactor.fix(b"ping".to_vec());
    for round in 0..3 {
        rig.reactor.send_fixed(A, request);
        rig.reactor.wait(WaitLimit { until: clock::now(), batch: None }).unwrap();
        let mut bytes = [0; 4];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping");
        far.write_all(&[round; 5]).unwrap();
        rig.until(|seen| matches!(seen, SeenEvent::Received(_)));
    }
    assert_eq!(rig.received(A), [[0; 5], [1; 5], [2; 5]].concat());
    assert_eq!(rig.kinds().len(), 4, "a fixed send is not confirmed: {:?}", rig.kinds());
    assert!(rig.reactor.socket(A).unwrap().peer_addr().is_ok());
    rig.reactor.close(A);
    assert!(rig.reactor.socket(A).is_none());
    rig.idle();
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
}

pub(super) fn a_refused_connect_fails_by_name<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let address = listener().1;
    rig.reactor.connect(A, socket::stream_nonblocking(address).unwrap(), &anywhere(address));
    rig.until(|seen| matches!(seen, SeenEvent::Failed(call, Some(libc::ECONNREFUSED)) if call == "connect"));
    // Requests on a dead token are ignored.
    rig.reactor.send(A, b"x");
    rig.idle();
    assert_eq!(rig.kinds(), [(3, "failed")]);
    rig.reactor.close(A);
    drop(tcp(&mut rig, A));
}

pub(super) fn large_sends_arrive_in_order_once_the_peer_reads<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    let parts = [pattern(8 << 20, 1), pattern(3000, 2), pattern(1 << 20, 3), pattern(10, 4)];
    let fixed = [rig.reactor.fix(parts[1].clone()), rig.reactor.fix(parts[2].clone())];
    rig.reactor.send(A, &parts[0]);
    rig.reactor.send_fixed(A, fixed[0]);
    rig.reactor.send_fixed(A, fixed[1]);
    rig.reactor.send(A, &parts[3]);
    rig.idle();
    assert_eq!(rig.kinds(), [(3, "connected")], "the peer has not read");
    let expected = parts.concat();
    let mut bytes = vec![0; expected.len()];
    thread::scope(|scope| {
        scope.spawn(|| far.read_exact(&mut bytes).unwrap());
        let mut n_sent = 0;
        rig.until(|seen| {
            n_sent += u32::from(matches!(seen, SeenEvent::Sent));
            n_sent == 2
        });
    });
    assert!(bytes == expected);
    rig.idle();
    assert_eq!(rig.kinds(), [(3, "connected"), (3, "sent"), (3, "sent")]);
}

pub(super) fn a_pipeline_stays_in_order_when_the_peer_reads_late<R: Reactor>(reactor: R) {
    // More data than the buffers of both ends hold, with all kinds of sends, submitted one by one and in groups.
    const ROUNDS: usize = 6000;
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    let parts: [Vec<u8>; 3] = [pattern(900, 1), pattern(2500, 2), pattern(5000, 3)];
    let fixed = parts.clone().map(|bytes| rig.reactor.fix(bytes));
    let mut expected = Vec::new();
    let mut n_sent = 0;
    for round in 0..ROUNDS {
        expected.extend_from_slice(&parts[round % 3]);
        if round % 7 == 6 {
            n_sent += 1;
            rig.reactor.send(A, &parts[round % 3]);
        } else if round % 4 == 1 {
            rig.reactor.send_quietly(A, &parts[round % 3]);
        } else {
            rig.reactor.send_fixed(A, fixed[round % 3]);
        }
        if round % 5 < 2 {
            rig.reactor.wait(WaitLimit { until: Nanos::ZERO, batch: None }).unwrap();
            while rig.next().is_some_and(|(_, seen)| matches!(seen, SeenEvent::Sent)) {
                n_sent -= 1;
            }
        }
    }
    // The last one shows that everything was sent.
    n_sent += 1;
    rig.reactor.send(A, b"end");
    expected.extend_from_slice(b"end");
    let mut bytes = vec![0; expected.len()];
    thread::scope(|scope| {
        scope.spawn(|| far.read_exact(&mut bytes).unwrap());
        rig.until(|seen| {
            n_sent -= u32::from(matches!(seen, SeenEvent::Sent));
            n_sent == 0
        });
    });
    assert!(bytes == expected);
}

pub(super) fn small_sends_are_each_confirmed<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    for at in 0..100 {
        rig.reactor.send(A, &[at]);
    }
    let mut n_sent = 0;
    rig.until(|seen| {
        n_sent += u32::from(matches!(seen, SeenEvent::Sent));
        n_sent == 100
    });
    let mut bytes = [0; 100];
    far.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, &byte)| at == usize::from(byte)));
}

pub(super) fn quiet_sends_arrive_and_say_nothing<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    // Each is longer than the last, so that its buffer has to grow; the answers in between are like replies to a request.
    for round in 0..40_u8 {
        let request = pattern(usize::from(round) * usize::from(round) * 4 + 1, round);
        rig.reactor.send_quietly(A, &request);
        rig.reactor.wait(WaitLimit { until: Nanos::ZERO, batch: None }).unwrap();
        let mut bytes = vec![0; request.len()];
        far.read_exact(&mut bytes).unwrap();
        assert!(bytes == request, "{round}");
        far.write_all(&[round]).unwrap();
        rig.until(|seen| matches!(seen, SeenEvent::Received(_)));
    }
    rig.idle();
    assert!(rig.kinds().iter().all(|(_, kind)| *kind != "sent"), "{:?}", rig.kinds());
}

pub(super) fn a_token_is_free_at_once_after_a_close_with_bytes_under_way<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    for round in 0..20 {
        let mut old = tcp(&mut rig, A);
        rig.reactor.send(A, &pattern(4 << 20, round));
        old.write_all(&[1; 10_000]).unwrap();
        if round % 2 == 0 {
            // In every other round the kernel has the send before the close.
            rig.reactor.wait(WaitLimit { until: clock::now() + Nanos::from_secs(1), batch: None }).unwrap();
        }
        rig.seen.clear();
        rig.reactor.close(A);
        let mut new = tcp(&mut rig, A);
        new.write_all(b"new").unwrap();
        rig.until(|seen| matches!(seen, SeenEvent::Received(_)));
        assert_eq!(rig.kinds(), [(3, "connected"), (3, "received")], "round {round}");
        assert_eq!(rig.received(A), b"new");
        rig.reactor.close(A);
        rig.idle();
        // The old connection ends or is reset; it does not hang.
        let mut rest = Vec::new();
        let _ = old.read_to_end(&mut rest);
        assert_eq!(new.read(&mut [0; 1]).unwrap(), 0);
    }
}

pub(super) fn what_was_pending_at_a_close_is_never_told<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut peers: Vec<_> = (0..50).map(|token| local(&mut rig, Token(token))).collect();
    rig.idle();
    for peer in &mut peers {
        peer.write_all(b"old").unwrap();
    }
    let mut new = Vec::new();
    rig.until(|seen| matches!(seen, SeenEvent::Received(_)));
    rig.seen.clear();
    for token in 0..50 {
        rig.reactor.close(Token(token));
        new.push(local(&mut rig, Token(token)));
    }
    rig.idle();
    assert_eq!(rig.kinds(), []);
    for peer in &mut new {
        peer.write_all(b"new").unwrap();
    }
    let mut n_received = 0;
    rig.until(|seen| {
        assert!(matches!(seen, SeenEvent::Received(bytes) if bytes == b"new"), "{seen:?}");
        n_received += 1;
        n_received == 50
    });
}

fn discard_then_go_on<R: Reactor>(rig: &mut Rig<R>, mut far: impl Write + Send) {
    for (round, count) in [1, 999, 1000, 65_536, 300_000, 1 << 20, 5 << 20, 7].into_iter().enumerate() {
        rig.seen.clear();
        let (head, body, tail) = (b"head:".as_slice(), pattern(count, 9), format!("tail {round}").into_bytes());
        thread::scope(|scope| {
            scope.spawn(|| far.write_all(&[head, &body, &tail].concat()).unwrap());
            // Once the head is there, the rest of the body can be discarded.
            let (mut n_received, mut asked) = (0, false);
            rig.drive(&mut |reactor, token, seen| {
                if let SeenEvent::Received(bytes) = seen {
                    n_received += bytes.len();
                    if !asked && n_received >= head.len() {
                        asked = true;
                        let left = (head.len() + count).saturating_sub(n_received);
                        reactor.discard(token, left as u64);
                        n_received += left;
                    }
                }
                n_received >= head.len() + count + tail.len()
            });
        });
        let (received, discarded) = (rig.received(A), usize::try_from(rig.discarded()).unwrap());
        assert_eq!(received.len() + discarded, head.len() + count + tail.len(), "{count}: {:?}", rig.kinds());
        assert!(received.starts_with(head) && received.ends_with(&tail), "{count}");
    }
}

pub(super) fn exactly_so_many_bytes_are_discarded<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let far = tcp(&mut rig, A);
    discard_then_go_on(&mut rig, far);
}

pub(super) fn a_unix_socket_discards_as_well<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let far = local(&mut rig, A);
    discard_then_go_on(&mut rig, far);
}

pub(super) fn a_discard_of_what_has_not_come_yet_waits_for_it<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    rig.reactor.discard(A, 6);
    rig.idle();
    far.write_all(b"123").unwrap();
    rig.idle();
    far.write_all(b"456789").unwrap();
    rig.until(|seen| matches!(seen, SeenEvent::Received(_)));
    assert_eq!((rig.discarded(), rig.received(A)), (6, b"789".to_vec()));
}

pub(super) fn an_end_within_a_discard_is_told<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    rig.reactor.discard(A, 100_000);
    rig.idle();
    far.write_all(&vec![0; 40_000]).unwrap();
    drop(far);
    rig.until(|seen| matches!(seen, SeenEvent::Ended));
    assert_eq!(rig.discarded(), 40_000);
}

pub(super) fn the_end_comes_after_all_bytes_and_sending_goes_on<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut far = tcp(&mut rig, A);
    let sent = pattern(700_000, 5);
    thread::scope(|scope| {
        scope.spawn(|| {
            far.write_all(&sent).unwrap();
            far.shutdown(Shutdown::Write).unwrap();
        });
        rig.until(|seen| matches!(seen, SeenEvent::Ended));
    });
    assert!(rig.received(A) == sent);
    rig.reactor.send(A, b"bye");
    rig.until(|seen| matches!(seen, SeenEvent::Sent));
    let mut bytes = [0; 3];
    far.read_exact(&mut bytes).unwrap();
    rig.idle();
    assert_eq!(rig.kinds().iter().filter(|(_, kind)| *kind == "ended").count(), 1);
}

pub(super) fn a_reset_fails_by_name<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let far = tcp(&mut rig, A);
    socket::set_reset_on_close(&far).unwrap();
    drop(far);
    rig.until(|seen| matches!(seen, SeenEvent::Failed(call, Some(libc::ECONNRESET)) if call == "recv"));
    rig.idle();
    assert_eq!(rig.kinds(), [(3, "connected"), (3, "failed")]);
}

pub(super) fn a_send_to_a_peer_that_is_gone_fails_by_name<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let far = tcp(&mut rig, A);
    drop(far);
    rig.until(|seen| matches!(seen, SeenEvent::Ended));
    let request = rig.reactor.fix(b"request".to_vec());
    // The first send triggers the reset, a later one fails because of it.
    let deadline = clock::now() + DEADLINE.into();
    while !rig.kinds().contains(&(3, "failed")) {
        assert!(clock::now() < deadline);
        rig.reactor.send_fixed(A, request);
        rig.idle();
    }
    let Some((_, SeenEvent::Failed(call, errno))) = rig.seen.pop() else { panic!("{:?}", rig.kinds()) };
    assert_eq!((call.as_str(), errno), ("send", Some(libc::EPIPE)));
}

pub(super) fn a_listener_tells_of_every_connection<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let near = socket::listen(([127, 0, 0, 1], 0).into(), 64, &AllowedPeers::anybody()).unwrap();
    let address = socket::local_address(&near).unwrap();
    rig.reactor.listen(B, near);
    let mut peers: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut n_accepted = 0;
    rig.until(|seen| {
        n_accepted += u32::from(matches!(seen, SeenEvent::Accepted(_)));
        n_accepted == 40
    });
    for (at, (token, seen)) in rig.seen.drain(..).enumerate() {
        let SeenEvent::Accepted(socket) = seen else { panic!("{seen:?}") };
        assert_eq!(token, B);
        rig.reactor.adopt(Token(u32::try_from(at).unwrap() + 1), socket);
    }
    peers[7].write_all(b"hello").unwrap();
    rig.until(|seen| matches!(seen, SeenEvent::Received(bytes) if bytes == b"hello"));
    let token = rig.seen.pop().unwrap().0;
    rig.reactor.send(token, b"you too");
    rig.until(|seen| matches!(seen, SeenEvent::Sent));
    let mut bytes = [0; 7];
    peers[7].read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"you too");
    // A closed listener accepts no more connections, and its port is free.
    rig.reactor.close(B);
    rig.idle();
    assert!(TcpStream::connect(address).is_err());
}

pub(super) fn a_unix_socket_connects<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("socket");
    let listener = UnixListener::bind(&address).unwrap();
    let near = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
    rig.reactor.connect(A, near, &Policy::anything().permit_unix(&address).unwrap());
    rig.until(|seen| matches!(seen, SeenEvent::Connected));
    let (mut far, _) = listener.accept().unwrap();
    rig.reactor.send(A, &pattern(100_000, 1));
    let mut bytes = vec![0; 100_000];
    thread::scope(|scope| {
        scope.spawn(|| far.read_exact(&mut bytes).unwrap());
        rig.until(|seen| matches!(seen, SeenEvent::Sent));
    });
    assert!(bytes == pattern(100_000, 1));
    drop(far);
    rig.until(|seen| matches!(seen, SeenEvent::Ended));
    drop(listener);
    let near = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
    rig.reactor.connect(B, near, &Policy::anything().permit_unix(&address).unwrap());
    rig.until(|seen| matches!(seen, SeenEvent::Failed(call, Some(libc::ECONNREFUSED)) if call == "connect"));
}

pub(super) fn a_wait_without_events_ends_on_time<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let _far = tcp(&mut rig, A);
    rig.idle();
    for batch in [None, Some(Batch { n: 8, within: Nanos::from_millis(1) })] {
        let begin = clock::now();
        let until = begin + Nanos::from_millis(20);
        rig.reactor.wait(WaitLimit { until, batch }).unwrap();
        let end = clock::now();
        assert!(end >= until, "{}", (end - begin).exact());
        assert!(end - begin < Nanos::from_secs(2), "{}", (end - begin).exact());
        assert!(rig.next().is_none());
    }
    // With a time in the past, the wait only polls.
    let begin = clock::now();
    rig.reactor.wait(WaitLimit { until: Nanos::ZERO, batch: None }).unwrap();
    assert!(clock::now() - begin < Nanos::from_secs(1));
}

pub(super) fn a_batch_waits_for_more_but_not_for_long<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut peers: Vec<_> = (0..4).map(|token| local(&mut rig, Token(token))).collect();
    rig.idle();
    // One of eight arrives: the wait ends long before its deadline.
    let begin = clock::now();
    let batch = Some(Batch { n: 8, within: Nanos::from_millis(30) });
    peers[0].write_all(b"x").unwrap();
    rig.reactor.wait(WaitLimit { until: begin + DEADLINE.into(), batch }).unwrap();
    let span = clock::now() - begin;
    assert!(matches!(rig.next(), Some((Token(0), SeenEvent::Received(_)))));
    assert!(span < Nanos::from_secs(5), "{}", span.exact());
    if rig.reactor.batches() {
        assert!(span >= Nanos::from_millis(29), "{}", span.exact());
    }
    // The full batch arrives: the wait ends before its time limit.
    let begin = clock::now();
    for peer in &mut peers {
        peer.write_all(b"x").unwrap();
    }
    let batch = Some(Batch { n: 4, within: Nanos::from_secs(10) });
    rig.reactor.wait(WaitLimit { until: begin + DEADLINE.into(), batch }).unwrap();
    assert!(clock::now() - begin < Nanos::from_secs(5));
    assert_eq!((0..9).take_while(|_| rig.next().is_some()).count(), 4);
}

pub(super) fn a_fast_sender_does_not_keep_the_others_waiting<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut fast = tcp(&mut rig, A);
    let mut slow = tcp(&mut rig, B);
    thread::scope(|scope| {
        // Sends until its connection is closed.
        let flood = scope.spawn(move || while fast.write_all(&vec![0; 1 << 16]).is_ok() {});
        slow.write_all(b"x").unwrap();
        let mut n_rounds = 0;
        rig.drive(&mut |_, token, seen| {
            if token == B && matches!(seen, SeenEvent::Received(_)) {
                n_rounds += 1;
                slow.write_all(b"x").unwrap();
            }
            n_rounds == 20
        });
        rig.reactor.close(A);
        rig.idle();
        flood.join().unwrap();
    });
}

pub(super) fn thousands_of_connections_are_served<R: Reactor>(reactor: R) {
    const COUNT: u32 = 2000;
    let mut rig = Rig::new(reactor);
    for round in 0..2 {
        let mut peers: Vec<_> = (0..COUNT).map(|token| local(&mut rig, Token(token))).collect();
        let request = rig.reactor.fix(vec![b'a' + round; 100]);
        (0..COUNT).for_each(|token| rig.reactor.send_fixed(Token(token), request));
        rig.idle();
        for peer in &mut peers {
            let mut bytes = [0; 100];
            peer.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, [b'a' + round; 100]);
            peer.write_all(&[round; 3000]).unwrap();
        }
        let mut received = vec![0; COUNT as usize];
        let mut n_left = COUNT;
        rig.drive(&mut |reactor, token, seen| {
            let SeenEvent::Received(bytes) = seen else { panic!("{seen:?}") };
            assert!(bytes.iter().all(|&byte| byte == round));
            received[token.index()] += bytes.len();
            if received[token.index()] == 3000 {
                n_left -= 1;
                reactor.close(token);
            }
            n_left == 0
        });
        rig.idle();
        rig.seen.clear();
        assert!(peers.iter_mut().all(|peer| peer.read(&mut [0; 1]).unwrap() == 0));
    }
}

pub(super) fn a_reactor_is_dropped_with_everything_under_way<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let near = socket::listen(([127, 0, 0, 1], 0).into(), 8, &AllowedPeers::anybody()).unwrap();
    let address = socket::local_address(&near).unwrap();
    rig.reactor.listen(Token(9), near);
    let mut peers: Vec<_> = (0..8).map(|token| tcp(&mut rig, Token(token))).collect();
    let request = rig.reactor.fix(pattern(6 << 20, 1));
    for (token, peer) in (0..).zip(&mut peers) {
        rig.reactor.send(Token(token), &pattern(6 << 20, 1));
        rig.reactor.send_fixed(Token(token), request);
        peer.write_all(&vec![0; 100_000]).unwrap();
    }
    rig.reactor.discard(Token(2), 1 << 40);
    rig.reactor.wait(WaitLimit { until: clock::now() + Nanos::from_secs(1), batch: None }).unwrap();
    rig.reactor.send(Token(0), b"never handed over");
    drop(rig);
    for peer in &mut peers {
        let _ = peer.read_to_end(&mut Vec::new());
    }
    assert!(TcpStream::connect(address).is_err());
}

pub(super) fn a_listener_without_a_filter_resets_strangers<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let guests = AllowedPeers::of(vec!["127.0.0.9".parse().unwrap()]).without_filter();
    let near = socket::listen(([127, 0, 0, 1], 0).into(), 64, &guests).unwrap();
    let address = socket::local_address(&near).unwrap();
    rig.reactor.listen(B, near);
    let connect = |from: [u8; 4]| {
        let peer = socket::stream(address).unwrap();
        peer.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        peer.connect(&address.into()).unwrap();
        socket::send(&peer, b"hello", socket::Wait::Block).unwrap();
        peer
    };
    // More strangers than one turn of a reactor accepts come before the guest.
    let mut strangers: Vec<_> = (0..20).map(|_| connect([127, 0, 0, 8])).collect();
    let guest = connect([127, 0, 0, 9]);
    rig.until(|seen| matches!(seen, SeenEvent::Accepted(_)));
    let Some((B, SeenEvent::Accepted(accepted))) = rig.seen.pop() else { panic!("{:?}", rig.kinds()) };
    assert_eq!(accepted.peer_addr().unwrap().as_socket(), guest.local_addr().unwrap().as_socket());
    assert!(rig.seen.is_empty(), "no stranger is told: {:?}", rig.kinds());
    for stranger in &mut strangers {
        assert_eq!(stranger.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
}

pub(super) fn connections_that_are_abandoned_are_reset<R: Reactor>(reactor: R) {
    let mut rig = Rig::new(reactor);
    let mut peers: Vec<_> = (0..8).map(|token| tcp(&mut rig, Token(token))).collect();
    let mut other = local(&mut rig, Token(8));
    rig.reactor.wait(WaitLimit { until: clock::now(), batch: None }).unwrap();
    rig.reactor.abandon();
    for peer in &mut peers {
        assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(other.read(&mut [0; 1]).unwrap(), 0, "it knows no reset");
}

/// Defines one test per case for a reactor; `$make` creates a new one, or returns `None` if it cannot work here.
macro_rules! suite {
    ($module:ident, $make:expr) => {
        suite!($module, $make;
            a_connection_carries_bytes_both_ways,
            a_refused_connect_fails_by_name,
            large_sends_arrive_in_order_once_the_peer_reads,
            a_pipeline_stays_in_order_when_the_peer_reads_late,
            small_sends_are_each_confirmed,
            quiet_sends_arrive_and_say_nothing,
            a_token_is_free_at_once_after_a_close_with_bytes_under_way,
            what_was_pending_at_a_close_is_never_told,
            exactly_so_many_bytes_are_discarded,
            a_unix_socket_discards_as_well,
            a_discard_of_what_has_not_come_yet_waits_for_it,
            an_end_within_a_discard_is_told,
            the_end_comes_after_all_bytes_and_sending_goes_on,
            a_reset_fails_by_name,
            a_send_to_a_peer_that_is_gone_fails_by_name,
            a_listener_tells_of_every_connection,
            a_listener_without_a_filter_resets_strangers,
            a_unix_socket_connects,
            a_wait_without_events_ends_on_time,
            a_batch_waits_for_more_but_not_for_long,
            a_fast_sender_does_not_keep_the_others_waiting,
            thousands_of_connections_are_served,
            connections_that_are_abandoned_are_reset,
            a_reactor_is_dropped_with_everything_under_way);
    };
    ($module:ident, $make:expr; $($case:ident),+) => {
        mod $module {
            $(#[test]
            fn $case() {
                if let Some(reactor) = $make {
                    super::$case(reactor);
                }
            })+
        }
    };
}

suite!(epoll, Some(<crate::reactor::Epoll as crate::reactor::Reactor>::new(16).unwrap()));
suite!(stamped_epoll, Some(<crate::reactor::StampedEpoll as crate::reactor::Reactor>::new(16).unwrap()));
suite!(uring, super::uring());

/// An `io_uring` reactor, or `None` if the kernel does not allow one: reported as a skip, and a failure in CI.
pub(super) fn uring() -> Option<Uring> {
    fathom_testkit::or_skip(is_allowed(), |_| true)?;
    Some(Uring::new(16).unwrap())
}

#[test]
fn a_stamped_send_departs_before_its_answer_arrives() {
    let mut rig = Rig::new(<crate::reactor::StampedEpoll as Reactor>::new(1).unwrap());
    let mut peer = tcp(&mut rig, Token(0));
    assert_eq!(rig.reactor.departed(Token(0)), None);
    let before = clock::now();
    rig.reactor.send(Token(0), b"asked");
    peer.read_exact(&mut [0; 5]).unwrap();
    peer.write_all(b"answered").unwrap();
    let arrived = loop {
        rig.reactor.wait(WaitLimit { until: clock::now() + Nanos::from_secs(1), batch: None }).unwrap();
        if let Some(Completion { at, event: Event::Received(piece), .. }) = rig.reactor.next() {
            rig.reactor.release(piece);
            break at;
        }
    };
    let departed = rig.reactor.departed(Token(0)).unwrap();
    assert!(before <= departed && departed <= arrived && arrived <= clock::now(), "{before} {departed} {arrived}");
    assert_eq!(rig.reactor.departed(Token(0)), None, "each departure is told once");
}
