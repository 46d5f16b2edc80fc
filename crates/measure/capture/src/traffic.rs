//! All connections of a capture.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{Hash, Hasher},
    io::Read,
    net::SocketAddr,
};

use fathom_model::units::Nanos;

use crate::{
    ByteClass, CaptureFileError, CapturedFrame, ConnectionBegin, ConnectionEnd, ConversationEnd, ConversationObserver,
    PacketClass, TrafficCounts, TrafficLimits,
    connection::{Connection, Shared},
    file::{CaptureItem, read_items},
    segment::{Segment, segment},
};

/// Ended connections that are remembered, so that a repeated packet does not begin them again.
const ENDED_MAX: usize = 16_384;
/// The part of the connections that is forgotten at once, because finding the oldest costs a pass over all.
const EVICTED_PART: usize = 16;

/// The ends of a connection, the smaller one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionKey([SocketAddr; 2]);

/// Each packet looks its connection up, and numbers of one word are hashed in a fraction of the time that the parts of an address take.
impl Hash for ConnectionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for end in self.0 {
            match end {
                SocketAddr::V4(end) => state.write_u64(u64::from(end.ip().to_bits()) << 16 | u64::from(end.port())),
                SocketAddr::V6(end) => {
                    state.write_u128(end.ip().to_bits());
                    state.write_u16(end.port());
                }
            }
        }
    }
}

/// Follows all connections of a capture file. Returns the observer, what was counted, and why the file was not read to its end.
///
/// # Errors
/// The file is no capture, or its first frame cannot be read.
pub fn read_traffic<O: ConversationObserver>(
    file: impl Read + Send,
    mut reader: TrafficReader<O>,
) -> Result<(O, TrafficCounts, Option<String>), CaptureFileError> {
    let end = read_items(file, |item| {
        match item {
            CaptureItem::Frame(frame) => reader.take(&frame),
            CaptureItem::Secrets(log) => reader.shared.observer.on_secrets(log),
        }
        Ok(())
    });
    let damage = after_damage(end)?;
    let (observer, counts) = reader.finish();
    Ok((observer, counts, damage))
}

/// Says why a file was not read to its end. What came before a damaged place counts.
pub(crate) fn after_damage(end: Result<u64, CaptureFileError>) -> Result<Option<String>, CaptureFileError> {
    match end {
        Ok(_) => Ok(None),
        Err(error @ (CaptureFileError::Damaged(1..) | CaptureFileError::Block(1..))) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Follows the connections of a capture through its frames.
pub struct TrafficReader<O: ConversationObserver> {
    shared: Shared<O>,
    connections: HashMap<ConnectionKey, Connection<O::Conversation>>,
    /// Ended connections with their numbers, the oldest first.
    ended: VecDeque<(ConnectionKey, u64)>,
    n_begun: u64,
    n_ended: u64,
    /// The time of the frame before.
    time: Nanos,
    /// Whether the connection between two ends is followed; all are without it.
    is_chosen: Option<Box<ConnectionChoice>>,
}

/// Says whether the connection between two ends is followed.
type ConnectionChoice = dyn Fn(SocketAddr, SocketAddr) -> bool;

impl<O: ConversationObserver> TrafficReader<O> {
    /// Nothing has been read yet.
    pub fn new(observer: O, limits: TrafficLimits) -> Self {
        let shared = Shared { observer, counts: TrafficCounts::default(), limits, n_held: 0 };
        let (connections, ended) = (HashMap::new(), VecDeque::new());
        Self { shared, connections, ended, n_begun: 0, n_ended: 0, time: Nanos::ZERO, is_chosen: None }
    }

    /// Follows only the connections between ends for which `is_chosen` returns true.
    #[must_use]
    pub fn choosing(mut self, is_chosen: impl Fn(SocketAddr, SocketAddr) -> bool + 'static) -> Self {
        self.is_chosen = Some(Box::new(is_chosen));
        self
    }

    /// Takes the next frame. One without a time has the time of the frame before.
    pub fn take(&mut self, frame: &CapturedFrame<'_>) {
        if let Some(time) = frame.time {
            self.time = time;
            self.shared.counts.first.get_or_insert(time);
            self.shared.counts.last = Some(time);
        }
        let class = match segment(frame) {
            Ok(segment) if self.is_left_out(&segment) => PacketClass::NotChosen,
            Ok(segment) => self.take_segment(&segment),
            Err(class) => class,
        };
        *self.shared.counts.packets.entry(class).or_default() += 1;
    }

    /// Ends all conversations. Returns the observer and what was counted.
    pub fn finish(mut self) -> (O, TrafficCounts) {
        let mut open: Vec<_> = std::mem::take(&mut self.connections).into_values().collect();
        open.retain(|connection| !connection.is_ended());
        open.sort_by_key(|connection| connection.number);
        for connection in &mut open {
            // Behind both FINs only lost packets are waited for.
            let how = if connection.is_closed() { ConnectionEnd::Closed } else { ConnectionEnd::CaptureEnded };
            self.end(connection, how);
        }
        (self.shared.observer, self.shared.counts)
    }

    fn is_left_out(&self, segment: &Segment<'_>) -> bool {
        self.is_chosen.as_ref().is_some_and(|is_chosen| !is_chosen(segment.source, segment.destination))
    }

    fn take_segment(&mut self, segment: &Segment<'_>) -> PacketClass {
        let is_first = segment.source <= segment.destination;
        let (key, end) = if is_first {
            (ConnectionKey([segment.source, segment.destination]), 0)
        } else {
            (ConnectionKey([segment.destination, segment.source]), 1)
        };
        if let Some(connection) = self.connections.get_mut(&key)
            && (!is_begin(segment) || connection.is_begun_by(end, segment))
        {
            let is_repeated = segment.is_syn && connection.has_syn(end, segment);
            let (class, after) = follow(connection, end, segment, &mut self.shared, self.time);
            self.count_end(key, after);
            return if is_repeated && class == PacketClass::Handshake { PacketClass::Repeated } else { class };
        }
        let Some(mut connection) = self.new_connection(key, end, segment) else {
            self.shared.counts.add_bytes(ByteClass::Unattributed, segment.payload.len());
            return if segment.has_payload() { PacketClass::Unattributed } else { segment.class_without_payload() };
        };
        let (class, after) = follow(&mut connection, end, segment, &mut self.shared, self.time);
        self.connections.insert(key, connection);
        self.count_end(key, after);
        class
    }

    /// Returns a new connection if a segment begins one. A known one with the same ends is over then.
    fn new_connection(
        &mut self,
        key: ConnectionKey,
        end: usize,
        segment: &Segment<'_>,
    ) -> Option<Connection<O::Conversation>> {
        if let Some(mut known) = self.connections.remove(&key)
            && !known.is_ended()
        {
            self.end(&mut known, ConnectionEnd::Reused);
        }
        let is_begin = is_begin(segment);
        if !is_begin && (!segment.has_payload() || segment.is_reset) {
            return None;
        }
        self.make_room();
        let mut connection = Connection::seeking(self.n_begun, key.0);
        self.n_begun += 1;
        let begin = if is_begin { ConnectionBegin::Handshake } else { ConnectionBegin::Middle };
        *self.shared.counts.begins.entry(begin).or_default() += 1;
        if is_begin {
            connection.begin(end, segment, &mut self.shared, self.time);
        }
        Some(connection)
    }

    fn end(&mut self, connection: &mut Connection<O::Conversation>, how: ConnectionEnd) {
        end_connection(connection, how, &mut self.shared);
        self.n_ended += 1;
    }

    /// Counts a connection that has just ended, which has this number.
    fn count_end(&mut self, key: ConnectionKey, ended: Option<u64>) {
        if let Some(number) = ended {
            self.n_ended += 1;
            self.remember_ended(key, number);
        }
    }

    /// Remembers a connection that has ended, and forgets the one that ended first if there are too many.
    fn remember_ended(&mut self, key: ConnectionKey, number: u64) {
        self.ended.push_back((key, number));
        if self.ended.len() > ENDED_MAX
            && let Some((key, number)) = self.ended.pop_front()
            && let Entry::Occupied(entry) = self.connections.entry(key)
            && entry.get().number == number
        {
            entry.remove();
        }
    }

    /// Forgets the connections without packets for the longest time, if there are too many.
    fn make_room(&mut self) {
        let n_open = usize::try_from(self.n_begun - self.n_ended).unwrap_or(usize::MAX);
        if n_open < self.shared.limits.n_connections {
            return;
        }
        let open = self.connections.iter().filter(|(_, connection)| !connection.is_ended());
        let mut open: Vec<_> = open.map(|(key, connection)| (connection.last, connection.number, *key)).collect();
        open.sort_unstable();
        let n_evicted = (open.len() / EVICTED_PART).max(1);
        for (_, _, key) in open.into_iter().take(n_evicted) {
            if let Some(mut connection) = self.connections.remove(&key) {
                self.end(&mut connection, ConnectionEnd::Evicted);
            }
        }
    }
}

/// Whether a segment begins a connection, or answers one that does.
const fn is_begin(segment: &Segment<'_>) -> bool {
    segment.is_syn && !segment.is_reset
}

/// Takes a segment of a connection. Returns the class of its packet, and the number of the connection if it ends with it.
fn follow<O: ConversationObserver>(
    connection: &mut Connection<O::Conversation>,
    end: usize,
    segment: &Segment<'_>,
    shared: &mut Shared<O>,
    time: Nanos,
) -> (PacketClass, Option<u64>) {
    let was_ended = connection.is_ended();
    let class = connection.take(end, segment, shared, time);
    if was_ended {
        return (class, None);
    }
    let how = if segment.is_reset {
        ConnectionEnd::Reset
    } else if connection.is_finished() {
        ConnectionEnd::Closed
    } else {
        return (class, None);
    };
    end_connection(connection, how, shared);
    (class, Some(connection.number))
}

fn end_connection<O: ConversationObserver>(
    connection: &mut Connection<O::Conversation>,
    how: ConnectionEnd,
    shared: &mut Shared<O>,
) {
    let conversation_end = match how {
        ConnectionEnd::Closed | ConnectionEnd::Reset | ConnectionEnd::Reused => ConversationEnd::Connection,
        ConnectionEnd::CaptureEnded | ConnectionEnd::Evicted => ConversationEnd::Capture,
    };
    connection.end(shared, conversation_end);
    *shared.counts.ends.entry(how).or_default() += 1;
    shared.counts.n_silent_connections += u64::from(!connection.has_spoken);
}
