//! The times of some exchanges in the kernel, for the anatomy of a transaction.
//!
//! A request announces that the next exchange of its connection is stamped. So both ends know beforehand which receive and which send
//! have to ask for times, and all others cost nothing more.

use std::mem;

use fathom_engine::SampleSchedule;
use fathom_model::{Part, SampledConnection, SampledUnit, Side, units::Nanos};
use fathom_sys::{
    clock::{self, RunDelayFile},
    socket::{
        self, Sender, Socket, Wait,
        timestamping::{self, KernelClockOffset, SendMoment, StampedReceive},
    },
};

/// The stamped exchanges of one connection at one end.
#[derive(Debug)]
pub(crate) struct UnitStamps {
    side: Side,
    clocks: KernelClockOffset,
    /// Whether the kernel stamps this socket.
    is_enabled: bool,
    /// The run delay of the thread that exchanges; opened by it, for the first stamped exchange.
    run_delay: Option<RunDelayFile>,
    current: Option<Exchange>,
    /// The exchange before, while its last packet waits in a qdisc.
    leaving: Option<Exchange>,
    units: Vec<SampledUnit>,
    n_incomplete: u64,
}

/// The times of an exchange, all on the monotonic clock.
#[derive(Debug, Default)]
struct Exchange {
    number: u64,
    /// The call that sends.
    asked: Option<Nanos>,
    queued: Option<Nanos>,
    left: Option<Nanos>,
    arrived: Option<Nanos>,
    /// The return of the call that receives.
    received: Option<Nanos>,
    /// The thread's run delay before the message arrived.
    run_delay_before: Option<Nanos>,
    /// The run delay since then, read when it costs the exchange no time: after the last call of this end.
    waited: Option<Nanos>,
}

impl Exchange {
    /// Enters a moment of the send. Returns `None` if it belongs to another exchange.
    fn note_departure(&mut self, moment: SendMoment, at: Nanos) -> Option<()> {
        let time = match moment {
            SendMoment::Queued => &mut self.queued,
            SendMoment::Left => &mut self.left,
        };
        let is_mine = time.is_none() && self.asked.is_some_and(|asked| asked <= at);
        is_mine.then(|| *time = Some(at))
    }

    fn note_run_delay(&mut self, now: Option<Nanos>) {
        self.waited = now.zip(self.run_delay_before).map(|(now, before)| now - before);
    }

    /// Its number and the lengths of its parts, if all are known.
    fn unit(&self, side: Side) -> Option<(u64, Vec<Nanos>)> {
        Some((self.number, self.spans(side)?))
    }

    /// The lengths of the parts of a side; `None` if a time is missing, or if the wall clock was set meanwhile.
    fn spans(&self, side: Side) -> Option<Vec<Nanos>> {
        let (asked, queued, left) = (self.asked?, self.queued?, self.left?);
        let (arrived, received) = (self.arrived?, self.received?);
        let waited = self.waited.unwrap_or_default();
        let wake_up = received.since(arrived);
        let after_arrival = waited.min(wake_up);
        let (times, parts) = match side {
            Side::Initiator => {
                let parts = [queued - asked, left - queued, arrived - left, wake_up - after_arrival, after_arrival];
                ([asked, queued, left, arrived, received], parts.to_vec())
            }
            Side::Responder => {
                // A thread that loses its core between the two calls waits there.
                let program = asked.since(received);
                let in_program = (waited - after_arrival).min(program);
                let (wake_up, core) = (wake_up - after_arrival, after_arrival + in_program);
                let parts = [wake_up, core, program - in_program, queued - asked, left - queued];
                ([arrived, received, asked, queued, left], parts.to_vec())
            }
        };
        times.is_sorted().then_some(parts)
    }
}

impl UnitStamps {
    /// The parts of each unit of a side.
    const fn parts(side: Side) -> [Part; 5] {
        match side {
            Side::Initiator => [Part::SendCall, Part::LocalQueue, Part::Away, Part::WakeUp, Part::CoreWait],
            Side::Responder => [Part::WakeUp, Part::CoreWait, Part::Program, Part::SendCall, Part::LocalQueue],
        }
    }

    /// Prepares a socket, which is connected if it is of TCP.
    pub(crate) fn new(socket: &Socket, side: Side) -> Self {
        let is_enabled = timestamping::enable_for_some(socket).is_ok();
        let clocks = KernelClockOffset::now();
        let (current, leaving, units) = (None, None, Vec::new());
        Self { side, clocks, is_enabled, run_delay: None, current, leaving, units, n_incomplete: 0 }
    }

    /// Begins an exchange, if the kernel stamps and the number of units is not exceeded. Returns whether it does.
    pub(crate) fn begin(&mut self, socket: &Socket, number: u64) -> bool {
        self.end(socket);
        let begins = self.is_enabled && u64::try_from(self.units.len()).is_ok_and(|n| n < SampleSchedule::UNITS_MAX);
        if begins {
            let run_delay_before = match self.side {
                Side::Initiator => None,
                Side::Responder => self.run_delay(),
            };
            let before = self.current.replace(Exchange { number, run_delay_before, ..Exchange::default() });
            if before.is_some() {
                self.n_incomplete += u64::from(self.leaving.is_some());
                self.leaving = before;
            }
        }
        begins
    }

    /// Sends the message of the current exchange.
    pub(crate) fn send(&mut self, socket: &Socket, bytes: &[u8], wait: Wait) -> fathom_sys::Result<Option<usize>> {
        self.note_send();
        let sent = timestamping::send(socket, bytes, wait);
        self.note_sent();
        sent
    }

    /// The same to the sender of a datagram.
    pub(crate) fn send_to(
        &mut self,
        socket: &Socket,
        bytes: &[u8],
        to: &Sender,
        wait: Wait,
    ) -> fathom_sys::Result<Option<usize>> {
        self.note_send();
        let sent = timestamping::send_to(socket, bytes, to, wait);
        self.note_sent();
        sent
    }

    fn note_send(&mut self) {
        if let Some(exchange) = &mut self.current {
            exchange.asked = Some(clock::now());
        }
    }

    /// Reads the run delay after a send, while the message is on its way.
    fn note_sent(&mut self) {
        let run_delay = self.run_delay();
        match (self.side, &mut self.current) {
            (Side::Initiator, Some(exchange)) => exchange.run_delay_before = run_delay,
            (Side::Responder, Some(exchange)) => exchange.note_run_delay(run_delay),
            (_, None) => {}
        }
    }

    /// The run delay of the calling thread, which is the one that exchanges.
    fn run_delay(&mut self) -> Option<Nanos> {
        if self.run_delay.is_none() {
            self.run_delay = RunDelayFile::of_this_thread();
        }
        self.run_delay.as_ref()?.read()
    }

    /// Receives the message of the current exchange, or a part of it.
    pub(crate) fn recv(&mut self, socket: &Socket, room: &mut [u8], wait: Wait) -> fathom_sys::Result<Option<usize>> {
        let received = timestamping::recv(socket, room, wait)?;
        Ok(received.map(|received| self.note_receive(received)))
    }

    /// The same from anybody.
    pub(crate) fn recv_from(
        &mut self,
        socket: &Socket,
        room: &mut [u8],
        wait: Wait,
    ) -> fathom_sys::Result<Option<(usize, Sender)>> {
        let received = timestamping::recv_from(socket, room, wait)?;
        Ok(received.map(|(received, sender)| (self.note_receive(received), sender)))
    }

    fn note_receive(&mut self, received: StampedReceive) -> usize {
        let now = clock::now();
        let run_delay = if self.side == Side::Initiator { self.run_delay() } else { None };
        if let Some(exchange) = &mut self.current {
            exchange.received = Some(now);
            exchange.arrived = received.at.and_then(|at| self.clocks.of_packet(at));
            if self.side == Side::Initiator {
                exchange.note_run_delay(run_delay);
            }
        }
        received.n_bytes
    }

    /// Ends the current exchange, if all of its times are known; a packet that a qdisc holds back leaves later.
    pub(crate) fn end(&mut self, socket: &Socket) {
        while let Ok(Some(sent)) = timestamping::departure(socket) {
            let Some(at) = self.clocks.of_packet(sent.at) else { continue };
            let mut waiting = [&mut self.leaving, &mut self.current].into_iter().flatten();
            let _ = waiting.find_map(|exchange| exchange.note_departure(sent.moment, at));
        }
        for place in [&mut self.leaving, &mut self.current] {
            if let Some((number, spans_ns)) = place.as_ref().and_then(|exchange| exchange.unit(self.side)) {
                self.units.push(SampledUnit { number, spans_ns });
                *place = None;
            }
        }
    }

    /// Gives the current exchange up: its answer did not arrive.
    pub(crate) fn abandon(&mut self) {
        self.current = None;
    }

    /// What was seen, if anything was stamped. Without `remote`, it is that of the socket.
    pub(crate) fn into_sampled(mut self, socket: &Socket, remote: Option<String>) -> Option<SampledConnection> {
        self.end(socket);
        self.n_incomplete += u64::from(self.leaving.is_some());
        if self.units.is_empty() && self.n_incomplete == 0 {
            return None;
        }
        let peer = || socket.peer_addr().ok()?.as_socket().map(|address| address.to_string());
        Some(SampledConnection {
            local: socket::local_address(socket).map(|address| address.to_string()).unwrap_or_default(),
            remote: remote.or_else(peer).unwrap_or_default(),
            parts: Self::parts(self.side).to_vec(),
            units: mem::take(&mut self.units),
            n_incomplete: self.n_incomplete,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> Exchange {
        let (asked, queued, left, arrived, received) =
            (Some(Nanos(10)), Some(Nanos(12)), Some(Nanos(13)), Some(Nanos(40)), Some(Nanos(60)));
        Exchange { asked, queued, left, arrived, received, number: 1, ..Exchange::default() }
    }

    fn spans(exchange: &Exchange, side: Side) -> Option<Vec<u64>> {
        Some(exchange.spans(side)?.iter().map(|span| span.0).collect())
    }

    #[test]
    fn a_side_tells_its_parts_only_if_all_times_are_known_and_in_order() {
        assert_eq!(spans(&exchange(), Side::Initiator), Some(vec![2, 1, 27, 20, 0]));
        assert_eq!(exchange().spans(Side::Responder), None, "it received before it sent");
        assert_eq!(Exchange { left: None, ..exchange() }.spans(Side::Initiator), None);
        let answered = Exchange { arrived: Some(Nanos(1)), received: Some(Nanos(4)), ..exchange() };
        assert_eq!(spans(&answered, Side::Responder), Some(vec![3, 0, 6, 2, 1]));
    }

    #[test]
    fn the_wait_for_a_core_is_taken_from_the_wake_up_and_then_from_the_program() {
        let waiting = |waited| Exchange { waited: Some(Nanos(waited)), ..exchange() };
        assert_eq!(spans(&waiting(15), Side::Initiator), Some(vec![2, 1, 27, 5, 15]));
        assert_eq!(
            spans(&waiting(500), Side::Initiator),
            Some(vec![2, 1, 27, 0, 20]),
            "it waited before the arrival too"
        );
        let answered = |waited| Exchange { arrived: Some(Nanos(1)), received: Some(Nanos(4)), ..waiting(waited) };
        assert_eq!(spans(&answered(2), Side::Responder), Some(vec![1, 2, 6, 2, 1]));
        assert_eq!(spans(&answered(7), Side::Responder), Some(vec![0, 7, 2, 2, 1]), "in the program");
    }
}
