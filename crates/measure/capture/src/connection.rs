//! One connection: from its packets to the conversations in it.

use std::net::SocketAddr;

use fathom_model::units::Nanos;

use crate::{
    AfterMissing, ByteClass, ConversationBegin, ConversationEnd, ConversationObserver, ConversationSide,
    ConversationStart, PacketClass, TrafficCounts, TrafficLimits,
    segment::Segment,
    stream::{Piece, Stream, distance, wrapping_add},
};

/// A SYN may come behind so many bytes of its connection.
const LATE_MAX: i32 = 1 << 20;

/// What all connections share.
pub(crate) struct Shared<O> {
    pub(crate) observer: O,
    pub(crate) counts: TrafficCounts,
    pub(crate) limits: TrafficLimits,
    /// Bytes that all connections hold behind missing ones.
    pub(crate) n_held: usize,
}

/// A connection, by the number of its packets' source among its two ends.
pub(crate) struct Connection<C> {
    /// Its number in the capture.
    pub(crate) number: u64,
    pub(crate) ends: [SocketAddr; 2],
    /// The time of its last packet.
    pub(crate) last: Nanos,
    pub(crate) state: ConnectionState<C>,
    /// Whether a conversation was found in it.
    pub(crate) has_spoken: bool,
    /// The sequence numbers behind the SYN of each end.
    behind_syn: [Option<u32>; 2],
}

/// What is known of a connection.
pub(crate) enum ConnectionState<C> {
    /// No conversation: neither a handshake nor the begin of a request was seen, or bytes are missing.
    Seeking(Seeking),
    Following(Box<Following<C>>),
    /// It ended; these were its first sequence numbers.
    Ended([Option<u32>; 2]),
}

/// A connection in which the next request is sought.
#[derive(Debug, Default)]
pub(crate) struct Seeking {
    /// Which end is the client, if that is known.
    client: Option<usize>,
    /// The sequence numbers up to which payload has been seen, by end.
    passed: [Option<u32>; 2],
    is_finished: [bool; 2],
    /// Whether bytes are missing before.
    is_behind_missing: bool,
}

/// A conversation, and the streams that it is made of.
pub(crate) struct Following<C> {
    /// Which end is the client.
    client: usize,
    from_client: Stream,
    /// Absent until its first sequence number is known.
    from_server: Option<Stream>,
    conversation: C,
}

impl<C> Following<C> {
    const fn side(&self, end: usize) -> ConversationSide {
        if end == self.client { ConversationSide::Client } else { ConversationSide::Server }
    }

    /// The stream of a side. One that was not seen before begins at `sequence`.
    fn stream(&mut self, side: ConversationSide, sequence: u32) -> &mut Stream {
        match side {
            ConversationSide::Client => &mut self.from_client,
            ConversationSide::Server => self.from_server.get_or_insert_with(|| Stream::new(sequence)),
        }
    }

    fn streams(&mut self) -> impl Iterator<Item = (ConversationSide, &mut Stream)> {
        let server = self.from_server.as_mut().map(|stream| (ConversationSide::Server, stream));
        std::iter::once((ConversationSide::Client, &mut self.from_client)).chain(server)
    }

    fn n_held(&self) -> usize {
        self.from_client.n_held() + self.from_server.as_ref().map_or(0, Stream::n_held)
    }

    fn is_finished(&self) -> bool {
        self.from_client.is_finished() && self.from_server.as_ref().is_some_and(Stream::is_finished)
    }

    fn is_closed(&self) -> bool {
        self.from_client.has_fin() && self.from_server.as_ref().is_some_and(Stream::has_fin)
    }

    /// The first sequence numbers, by end.
    fn first(&self) -> [Option<u32>; 2] {
        let mut first = [Some(self.from_client.first), self.from_server.as_ref().map(|stream| stream.first)];
        if self.client == 1 {
            first.reverse();
        }
        first
    }
}

impl<C> Connection<C> {
    pub(crate) fn seeking(number: u64, ends: [SocketAddr; 2]) -> Self {
        let state = ConnectionState::Seeking(Seeking::default());
        Self { number, ends, last: Nanos::ZERO, state, has_spoken: false, behind_syn: [None; 2] }
    }

    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.state, ConnectionState::Ended(_))
    }

    /// Whether the same SYN of this end was there before.
    pub(crate) fn has_syn(&self, end: usize, segment: &Segment<'_>) -> bool {
        self.behind_syn[end] == Some(segment.sequence)
    }

    /// Whether a SYN, or the answer to one, is part of the begin of this connection.
    pub(crate) fn is_begun_by(&self, end: usize, segment: &Segment<'_>) -> bool {
        if let Some(behind_syn) = self.behind_syn[end] {
            return behind_syn == segment.sequence;
        }
        let first = self.first();
        // A new connection with the same ports has a larger number as a rule (RFC 6191), so that a smaller one is late.
        let is_late = |first| (-LATE_MAX..=0).contains(&distance(segment.sequence, first));
        let is_answer = segment.acknowledged.is_some() && segment.acknowledged == first[1 - end];
        first[end].map_or(is_answer, is_late)
    }

    /// The first sequence numbers of both ends, or those that were passed without finding a conversation.
    fn first(&self) -> [Option<u32>; 2] {
        match &self.state {
            ConnectionState::Seeking(seeking) => seeking.passed,
            ConnectionState::Following(following) => following.first(),
            ConnectionState::Ended(first) => *first,
        }
    }

    /// The client and its first sequence number are known from a SYN, and the server's from the answer to one.
    pub(crate) fn begin<O: ConversationObserver<Conversation = C>>(
        &mut self,
        end: usize,
        segment: &Segment<'_>,
        shared: &mut Shared<O>,
        time: Nanos,
    ) {
        let (client, first) = match segment.acknowledged {
            Some(acknowledged) => (1 - end, [acknowledged, segment.sequence]),
            None => (end, [segment.sequence, 0]),
        };
        let from_server = segment.acknowledged.map(|_| Stream::new(first[1]));
        self.open(client, (Stream::new(first[0]), from_server), ConversationBegin::Handshake, shared, time);
    }

    fn open<O: ConversationObserver<Conversation = C>>(
        &mut self,
        client: usize,
        (from_client, from_server): (Stream, Option<Stream>),
        begin: ConversationBegin,
        shared: &mut Shared<O>,
        time: Nanos,
    ) {
        let (connection, server) = (self.number, self.ends[1 - client]);
        let start = ConversationStart { connection, client: self.ends[client], server, time, begin };
        let conversation = shared.observer.open(start);
        self.has_spoken = true;
        let following = Following { client, from_client, from_server, conversation };
        self.state = ConnectionState::Following(Box::new(following));
    }

    /// Follows a segment of an end. Returns the class of its packet.
    pub(crate) fn take<O: ConversationObserver<Conversation = C>>(
        &mut self,
        end: usize,
        segment: &Segment<'_>,
        shared: &mut Shared<O>,
        time: Nanos,
    ) -> PacketClass {
        self.last = self.last.max(time);
        let n_held = self.n_held();
        if segment.is_syn {
            self.behind_syn[end].get_or_insert(segment.sequence);
        }
        self.note_server(end, segment);
        let class = self.take_payload(end, segment, shared, time);
        if segment.is_fin {
            self.finish_side(end, segment);
        }
        self.settle(shared);
        shared.n_held = shared.n_held + self.n_held() - n_held;
        self.respect_limits(shared);
        class
    }

    pub(crate) fn n_held(&self) -> usize {
        match &self.state {
            ConnectionState::Following(following) => following.n_held(),
            _ => 0,
        }
    }

    fn take_payload<O: ConversationObserver<Conversation = C>>(
        &mut self,
        end: usize,
        segment: &Segment<'_>,
        shared: &mut Shared<O>,
        time: Nanos,
    ) -> PacketClass {
        let class = match segment {
            Segment { payload: [], n_cut: 0, .. } => return segment.class_without_payload(),
            Segment { is_reset: true, .. } => {
                shared.counts.add_bytes(ByteClass::Unattributed, segment.payload.len());
                PacketClass::Close
            }
            _ => self.place(end, &Arrival::of(segment, time), shared),
        };
        if segment.n_cut > 0 { PacketClass::CutPayload } else { class }
    }

    /// Brings payload to its place in the connection. Returns the class of its packet.
    fn place<O: ConversationObserver<Conversation = C>>(
        &mut self,
        end: usize,
        arrival: &Arrival<'_>,
        shared: &mut Shared<O>,
    ) -> PacketClass {
        if let ConnectionState::Seeking(seeking) = &mut self.state
            && let Some(begin) = seeking.begin_at((end, self.ends), arrival, &shared.observer)
        {
            let acknowledged = arrival.acknowledged.map(Stream::new);
            self.open(end, (Stream::new(arrival.sequence), acknowledged), begin, shared, arrival.time);
        }
        let unattributed = |shared: &mut Shared<O>, class| {
            shared.counts.add_bytes(ByteClass::Unattributed, arrival.bytes.len());
            class
        };
        match &mut self.state {
            ConnectionState::Following(following) => {
                let side = following.side(end);
                if !following.stream(side, arrival.sequence).is_near(arrival.sequence) {
                    return unattributed(shared, PacketClass::OutOfWindow);
                }
                let n_new = following.receive(side, arrival, shared);
                shared.counts.add_bytes(ByteClass::Repeated, arrival.bytes.len() - n_new);
                match side {
                    _ if n_new == 0 => PacketClass::Repeated,
                    ConversationSide::Client => PacketClass::ClientData,
                    ConversationSide::Server => PacketClass::ServerData,
                }
            }
            ConnectionState::Seeking(seeking) => {
                let n_repeated = seeking.pass(end, arrival);
                shared.counts.add_bytes(ByteClass::Repeated, n_repeated);
                shared.counts.add_bytes(ByteClass::Unattributed, arrival.bytes.len() - n_repeated);
                if n_repeated == arrival.bytes.len() { PacketClass::Repeated } else { PacketClass::Unattributed }
            }
            ConnectionState::Ended(_) => unattributed(shared, PacketClass::AfterEnd),
        }
    }

    fn finish_side(&mut self, end: usize, segment: &Segment<'_>) {
        let n = segment.payload.len() + segment.n_cut;
        let behind = wrapping_add(segment.sequence, n as u64);
        match &mut self.state {
            ConnectionState::Seeking(seeking) => seeking.is_finished[end] = true,
            ConnectionState::Following(following) => {
                let stream = following.stream(following.side(end), behind);
                if stream.is_near(behind) {
                    stream.finish_at(behind);
                }
            }
            ConnectionState::Ended(_) => {}
        }
    }

    /// Notes where the server's stream begins: its SYN says so, and what the client expects, as its first packets may be missing.
    fn note_server(&mut self, end: usize, segment: &Segment<'_>) {
        let ConnectionState::Following(following) = &mut self.state else { return };
        match segment.acknowledged {
            _ if segment.is_reset => {}
            Some(_) if segment.is_syn && end != following.client => {
                following.stream(ConversationSide::Server, segment.sequence);
            }
            Some(acknowledged) if end == following.client => {
                following.stream(ConversationSide::Server, acknowledged);
            }
            _ => {}
        }
    }

    /// Tells the observer which sides have finished.
    fn settle<O: ConversationObserver<Conversation = C>>(&mut self, shared: &mut Shared<O>) {
        let ConnectionState::Following(following) = &mut self.state else { return };
        for side in [ConversationSide::Client, ConversationSide::Server] {
            let stream = match side {
                ConversationSide::Client => Some(&mut following.from_client),
                ConversationSide::Server => following.from_server.as_mut(),
            };
            if stream.is_some_and(Stream::tell_end) {
                shared.observer.on_finished(&mut following.conversation, side);
            }
        }
    }

    /// Whether both sides have sent everything, and it came.
    pub(crate) fn is_finished(&self) -> bool {
        match &self.state {
            ConnectionState::Seeking(seeking) => seeking.is_finished == [true, true],
            ConnectionState::Following(following) => following.is_finished(),
            ConnectionState::Ended(_) => false,
        }
    }

    /// Whether both sides have closed it, whatever is missing.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.state {
            ConnectionState::Seeking(seeking) => seeking.is_finished == [true, true],
            ConnectionState::Following(following) => following.is_closed(),
            ConnectionState::Ended(_) => true,
        }
    }

    /// Gives up missing bytes while too many others wait for them.
    fn respect_limits<O: ConversationObserver<Conversation = C>>(&mut self, shared: &mut Shared<O>) {
        while self.n_held() > 0 && self.holds_too_much(shared) {
            self.give_up_missing(shared);
        }
    }

    fn holds_too_much<O>(&self, shared: &Shared<O>) -> bool {
        let ConnectionState::Following(following) = &self.state else { return false };
        let TrafficLimits { n_held_of_connection, n_pieces_of_connection, n_held, .. } = shared.limits;
        following.n_held() > n_held_of_connection
            || following.n_pieces() > n_pieces_of_connection
            || shared.n_held > n_held
    }

    /// Waits no longer for what was missing first. Returns whether anything was.
    fn give_up_missing<O: ConversationObserver<Conversation = C>>(&mut self, shared: &mut Shared<O>) -> bool {
        let ConnectionState::Following(following) = &mut self.state else { return false };
        let n_held = following.n_held();
        let Some(waiting) = following.first_waiting() else { return false };
        match waiting {
            Waiting::ForMissing(side, n) => {
                *shared.counts.missing_bytes.entry(side).or_default() += n;
                match shared.observer.on_missing(&mut following.conversation, side, n) {
                    AfterMissing::Continues => following.deliver(shared),
                    AfterMissing::Lost => self.lose(shared),
                }
            }
            Waiting::ForOther(side, piece) => {
                following.give(side, &piece, shared);
                following.deliver(shared);
            }
        }
        shared.n_held = shared.n_held + self.n_held() - n_held;
        self.settle(shared);
        true
    }

    /// Ends a conversation behind missing bytes, and seeks the next one in what was held.
    fn lose<O: ConversationObserver<Conversation = C>>(&mut self, shared: &mut Shared<O>) {
        let state = std::mem::replace(&mut self.state, ConnectionState::Ended([None; 2]));
        let ConnectionState::Following(following) = state else { unreachable!("only conversations are lost") };
        let Following { client, from_client, from_server, conversation } = *following;
        shared.observer.on_end(conversation, ConversationEnd::Missing);
        let mut seeking = Seeking { client: Some(client), is_behind_missing: true, ..Seeking::default() };
        seeking.passed[client] = Some(from_client.next_sequence());
        seeking.passed[1 - client] = from_server.as_ref().map(Stream::next_sequence);
        seeking.is_finished[client] = from_client.has_fin();
        seeking.is_finished[1 - client] = from_server.as_ref().is_some_and(Stream::has_fin);
        let of_end = |end: usize| move |piece: Piece| (end, piece);
        let held_of_server = from_server.into_iter().flat_map(Stream::into_held).map(of_end(1 - client));
        let mut held: Vec<(usize, Piece)> = from_client.into_held().map(of_end(client)).chain(held_of_server).collect();
        // Stable: pieces of one time keep the order of their stream.
        held.sort_by_key(|(_, piece)| piece.time);
        self.state = ConnectionState::Seeking(seeking);
        for (end, piece) in &held {
            self.place(*end, &Arrival::again(piece), shared);
        }
    }

    /// Ends the connection; what is held is given up first.
    pub(crate) fn end<O: ConversationObserver<Conversation = C>>(
        &mut self,
        shared: &mut Shared<O>,
        end: ConversationEnd,
    ) {
        while self.give_up_missing(shared) {}
        let ended = ConnectionState::Ended(self.first());
        let state = std::mem::replace(&mut self.state, ended);
        if let ConnectionState::Following(following) = state {
            shared.observer.on_end(following.conversation, end);
        }
    }
}

/// What a conversation waits for.
enum Waiting {
    /// Bytes that are not in the capture, of which this many were passed over.
    ForMissing(ConversationSide, u64),
    /// A piece that acknowledges more than the other side has sent, which was taken out.
    ForOther(ConversationSide, Piece),
}

impl<C> Following<C> {
    /// Takes payload of one side. Returns the number of new bytes.
    fn receive<O: ConversationObserver<Conversation = C>>(
        &mut self,
        side: ConversationSide,
        arrival: &Arrival<'_>,
        shared: &mut Shared<O>,
    ) -> usize {
        let may_come = self.has_other_reached(side, arrival.acknowledged);
        let stream = self.stream(side, arrival.sequence);
        let new = if may_come { stream.pass(arrival.sequence, arrival.bytes) } else { None };
        let n_new = match new {
            Some([]) => return 0,
            Some(new) => {
                shared.counts.add_bytes(class_of(side), new.len());
                shared.observer.on_bytes(&mut self.conversation, side, new, arrival.time);
                new.len()
            }
            None => stream.hold(&arrival.piece()),
        };
        self.deliver(shared);
        n_new
    }

    /// Whether the other side has sent what a side acknowledged, so that both sides come in an order that was possible.
    fn has_other_reached(&self, side: ConversationSide, acknowledged: Option<u32>) -> bool {
        let other = match side {
            ConversationSide::Client => self.from_server.as_ref(),
            ConversationSide::Server => Some(&self.from_client),
        };
        other.zip(acknowledged).is_none_or(|(other, acknowledged)| other.has_reached(acknowledged))
    }

    /// Gives the observer what no longer waits.
    fn deliver<O: ConversationObserver<Conversation = C>>(&mut self, shared: &mut Shared<O>) {
        while self.n_pieces() > 0 {
            let Some((side, piece)) = self.next_piece() else { return };
            self.give(side, &piece, shared);
        }
    }

    fn next_piece(&mut self) -> Option<(ConversationSide, Piece)> {
        let Self { from_client, from_server, .. } = self;
        let Some(from_server) = from_server else {
            return Some((ConversationSide::Client, from_client.next_piece(|_| true)?));
        };
        let may_come = |piece: &Piece, other: &Stream| piece.acknowledged.is_none_or(|next| other.has_reached(next));
        if let Some(piece) = from_client.next_piece(|piece| may_come(piece, from_server)) {
            return Some((ConversationSide::Client, piece));
        }
        let piece = from_server.next_piece(|piece| may_come(piece, from_client))?;
        Some((ConversationSide::Server, piece))
    }

    fn give<O: ConversationObserver<Conversation = C>>(
        &mut self,
        side: ConversationSide,
        piece: &Piece,
        shared: &mut Shared<O>,
    ) {
        shared.counts.add_bytes(class_of(side), piece.bytes.len());
        shared.observer.on_bytes(&mut self.conversation, side, &piece.bytes, piece.time);
    }

    /// Passes over what the conversation waits for: missing bytes first, those before the earliest piece before others.
    fn first_waiting(&mut self) -> Option<Waiting> {
        let mut streams: Vec<_> = self.streams().collect();
        // A stream that holds nothing waits for its end at most.
        streams.sort_by_key(|(_, stream)| (stream.held_since().is_none(), stream.held_since()));
        for (side, stream) in &mut streams {
            if let Some(n) = stream.skip_missing() {
                return Some(Waiting::ForMissing(*side, n));
            }
        }
        streams.into_iter().find_map(|(side, stream)| Some(Waiting::ForOther(side, stream.next_piece(|_| true)?)))
    }

    fn n_pieces(&self) -> usize {
        self.from_client.n_pieces() + self.from_server.as_ref().map_or(0, Stream::n_pieces)
    }
}

impl Seeking {
    /// Returns why a conversation begins with this payload, if one does.
    fn begin_at<O: ConversationObserver>(
        &self,
        (end, ends): (usize, [SocketAddr; 2]),
        arrival: &Arrival<'_>,
        observer: &O,
    ) -> Option<ConversationBegin> {
        let begins = || observer.begins(arrival.bytes, (ends[end], ends[1 - end]));
        let is_new = self.passed[end].is_none_or(|passed| distance(arrival.sequence, passed) >= 0);
        let is_client = self.client.is_none_or(|client| client == end);
        (is_new && is_client && arrival.acknowledged.is_some() && begins()).then_some(if self.is_behind_missing {
            ConversationBegin::AfterMissing
        } else {
            ConversationBegin::Middle
        })
    }

    /// Passes over payload. Returns the number of bytes that had been passed before.
    fn pass(&mut self, end: usize, arrival: &Arrival<'_>) -> usize {
        let behind = wrapping_add(arrival.sequence, arrival.bytes.len() as u64);
        let passed = self.passed[end].unwrap_or(arrival.sequence);
        let n_new = usize::try_from(distance(behind, passed)).unwrap_or(0).min(arrival.bytes.len());
        self.passed[end] = Some(if distance(behind, passed) > 0 { behind } else { passed });
        arrival.bytes.len() - n_new
    }
}

/// Payload that arrives at its connection.
struct Arrival<'a> {
    sequence: u32,
    bytes: &'a [u8],
    acknowledged: Option<u32>,
    time: Nanos,
}

impl<'a> Arrival<'a> {
    const fn of(segment: &Segment<'a>, time: Nanos) -> Self {
        let Segment { sequence, payload: bytes, acknowledged, .. } = *segment;
        Self { sequence, bytes, acknowledged, time }
    }

    /// Payload that was held.
    fn again(piece: &'a Piece) -> Self {
        let Piece { sequence, ref bytes, acknowledged, time } = *piece;
        Self { sequence, bytes, acknowledged, time }
    }

    fn piece(&self) -> Piece {
        let Self { sequence, bytes, acknowledged, time } = *self;
        Piece { sequence, bytes: bytes.to_vec(), acknowledged, time }
    }
}

const fn class_of(side: ConversationSide) -> ByteClass {
    match side {
        ConversationSide::Client => ByteClass::Client,
        ConversationSide::Server => ByteClass::Server,
    }
}
