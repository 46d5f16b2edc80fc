//! Passes bytes on between two streams whose protocol the proxy does not know.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};

/// As long as NATs on the way keep a silent connection (RFC 5382 section 5, REQ-5).
pub(super) const IDLE_MAX: Duration = Duration::from_mins(124);
/// The bytes of each direction that are held.
const BUFFER: usize = 8 << 10;

/// Why bytes are no longer passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassingEnd {
    /// Both sides closed, or one of them failed.
    Closed,
    /// Neither side sent a byte for the whole time.
    Idle,
}

/// Passes the bytes of both sides on until both have closed, or neither sent any for `idle` (noticed within twice that time).
pub(super) async fn pass_on<C, S>(client: C, server: S, idle: Duration) -> PassingEnd
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let n_passed = AtomicU64::new(0);
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let both = async {
        tokio::try_join!(
            one_way(&mut from_client, &mut to_server, &n_passed),
            one_way(&mut from_server, &mut to_client, &n_passed)
        )
    };
    tokio::select! {
        // The end of a foreign protocol has no meaning that the proxy knows.
        _ = both => PassingEnd::Closed,
        () = silence(&n_passed, idle) => PassingEnd::Idle,
    }
}

/// Passes the bytes of one side on, and then its end.
async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    n_passed: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..n]).await?;
        to.flush().await?;
        n_passed.fetch_add(n as u64, Relaxed);
    }
}

/// Ends when no byte has passed for a whole span of this length.
async fn silence(n_passed: &AtomicU64, idle: Duration) {
    loop {
        let n_before = n_passed.load(Relaxed);
        tokio::time::sleep(idle).await;
        if n_passed.load(Relaxed) == n_before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// Runs a test in virtual time, with the two outer ends of a passage.
    fn passage<T, F: Future<Output = T>>(test: impl FnOnce(DuplexStream, DuplexStream) -> F) -> (T, PassingEnd) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let ((client, near), (far, server)) = (duplex(64), duplex(64));
            let passing = tokio::spawn(pass_on(near, far, Duration::from_mins(1)));
            let outcome = test(client, server).await;
            (outcome, passing.await.unwrap())
        })
    }

    async fn send(from: &mut DuplexStream, to: &mut DuplexStream) {
        from.write_all(b"x").await.unwrap();
        assert_eq!(to.read_u8().await.unwrap(), b'x');
    }

    #[test]
    fn a_passage_that_is_used_now_and_then_stays_open_and_a_silent_one_ends() {
        let (last, end) = passage(async |mut client, mut server| {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                send(&mut server, &mut client).await;
            }
            let last = tokio::time::Instant::now();
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the passage is closed");
            (last.elapsed(), server)
        });
        assert_eq!(end, PassingEnd::Idle);
        assert!((60..120).contains(&last.0.as_secs()), "{:?}", last.0);
    }

    #[test]
    fn each_direction_ends_on_its_own() {
        let ((), end) = passage(async |mut client, mut server| {
            client.shutdown().await.unwrap();
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
            send(&mut server, &mut client).await;
        });
        assert_eq!(end, PassingEnd::Closed);
    }
}
