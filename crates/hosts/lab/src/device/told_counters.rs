//! What a device tells of itself to whoever asks in its network namespace: the CPU time of its threads, and its own counters.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    net::Shutdown,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use fathom_model::{names::host, units::Nanos};
use fathom_sys::{clock, socket::SockRef};

use super::hop_counters::{DIRECTIONS, HopCounters};

/// An asker that does not read its answer within this time gets none.
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// What tells the counters of a device.
#[derive(Debug)]
pub(super) enum ToldCounters {
    /// An impairment with the counters of its two directions, each of which has a thread of this process.
    Impairment([Arc<HopCounters>; 2]),
    /// Threads of the kernel, by their numbers.
    Threads(Vec<u32>),
    /// All threads of a process.
    Process(u32),
}

impl ToldCounters {
    /// A line for each counter: `NAME INSTANCE VALUE`.
    fn lines(&self) -> String {
        let mut text = String::new();
        match self {
            Self::Impairment(counters) => {
                for (direction, counters) in DIRECTIONS.iter().zip(counters) {
                    add_thread(&mut text, counters.thread(), counters.awake());
                    for (name, value) in counters.values() {
                        add_line(&mut text, name, direction, value);
                    }
                }
            }
            Self::Threads(threads) => threads.iter().for_each(|thread| add_thread(&mut text, *thread, Nanos::ZERO)),
            Self::Process(process) => {
                // A process that ended has none.
                let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
                let threads = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
                threads.for_each(|thread| add_thread(&mut text, thread, Nanos::ZERO));
            }
        }
        text
    }
}

fn add_line(text: &mut String, name: &str, of: &str, value: u64) {
    writeln!(text, "{name} {of} {value}").expect("a text takes everything");
}

/// Adds the times of a thread by its name (proc(5): `/proc/TID/comm`); nothing if it has ended. The time that it waited awake is no work.
fn add_thread(text: &mut String, thread: u32, awake: Nanos) {
    let name = fs::read_to_string(format!("/proc/{thread}/comm"));
    let (Ok(name), Some(times)) = (name, clock::core_times(thread)) else { return };
    let name = name.trim().replace(' ', "-");
    add_line(text, host::DEVICE_CPU_NS, &name, (times.ran - awake).0);
    add_line(text, host::DEVICE_WAIT_NS, &name, times.waited.0);
}

/// Opens the socket in the calling thread's network namespace: abstract names belong to it (unix(7)).
pub(super) fn listen() -> fathom_sys::Result<UnixListener> {
    let bind = || UnixListener::bind_addr(&SocketAddr::from_abstract_name(host::LAB_DEVICE_SOCKET)?);
    bind().map_err(|error| fathom_sys::Error::new("bind(AF_UNIX)", error))
}

/// The thread that tells the counters; dropping this ends it.
#[derive(Debug)]
pub(super) struct CounterServer {
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl CounterServer {
    pub(super) fn start(listener: UnixListener, counters: ToldCounters) -> io::Result<Self> {
        let server = listener.try_clone()?;
        let thread = thread::Builder::new().name("fathom-counts".to_owned());
        let thread = thread.spawn(move || {
            // Accepting fails once the socket is shut down.
            for mut stream in server.incoming().map_while(Result::ok) {
                let _ = stream.set_write_timeout(Some(ANSWER_MAX));
                // Whoever asks may be gone.
                let _ = stream.write_all(counters.lines().as_bytes());
            }
        })?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for CounterServer {
    fn drop(&mut self) {
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impairment_tells_every_counter_of_both_directions_and_the_times_of_its_threads() {
        let counters: [Arc<HopCounters>; 2] = Default::default();
        counters[1].add(host::IMPAIR_RESET);
        counters[1].add(host::IMPAIR_RESET);
        counters[0].runs_here();
        let text = ToldCounters::Impairment(counters).lines();
        assert!(text.contains("impair_reset back 2\n") && text.contains("impair_reset forward 0\n"), "{text}");
        assert_eq!(text.lines().count(), 2 * host::OF_IMPAIRMENTS.len() + 2, "the other direction has no thread");
        assert!(text.starts_with("device_cpu_ns "), "{text}");
    }

    #[test]
    fn a_process_tells_the_times_of_its_threads_and_nothing_once_it_has_ended() {
        let text = ToldCounters::Process(std::process::id()).lines();
        assert!(text.lines().count() >= 4 && text.lines().all(|line| line.split(' ').count() == 3), "{text}");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(ToldCounters::Process(child.id()).lines(), "");
    }
}
