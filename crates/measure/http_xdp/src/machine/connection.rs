//! The state of a connection, in the 64 bytes that the program and user space share.

/// The bytes of an answer that are still to come, while its head has not arrived.
pub const HEAD_DUE: u32 = u32::MAX;

/// Where a connection is in its life (RFC 9293 section 3.3.2, without the states that a client with one request in flight never has).
///
/// User space writes the rows of closed and idle connections, the program all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// There is no connection; user space may open one.
    #[default]
    Closed = 0,
    /// The SYN is out.
    SynSent = 1,
    /// The request is out, and its answer has not ended.
    Waiting = 2,
    /// The answer has ended; the server, which was told `Connection: close`, has not closed yet.
    AnswerEnded = 3,
    /// Our FIN is out.
    LastAck = 4,
    /// The connection is open without a request; user space may send one.
    Idle = 5,
}

impl State {
    /// All states, by their numbers.
    pub const ALL: [Self; 6] =
        [Self::Closed, Self::SynSent, Self::Waiting, Self::AnswerEnded, Self::LastAck, Self::Idle];

    fn numbered(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

/// One connection with at most one request in flight. Sequence numbers are those of RFC 9293 section 3.3.1, times are nanoseconds of
/// `CLOCK_MONOTONIC`.
#[expect(clippy::struct_excessive_bools, reason = "each is a byte of the row, and they do not exclude each other")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connection {
    /// The first byte of ours that the server has not acknowledged (`SND.UNA`).
    pub unacknowledged: u32,
    /// The number of the next byte of ours (`SND.NXT`).
    pub send_next: u32,
    /// The number of the server's next byte (`RCV.NXT`).
    pub receive_next: u32,
    /// The bytes of the answer that are still to come, or [`HEAD_DUE`].
    pub left: u32,
    /// The start of what is timed: of the request, or of the connection if each request has one of its own.
    pub started_at: u64,
    /// When the connection last sent something new or received data in order.
    pub active_at: u64,
    /// Where it is in its life.
    pub state: State,
    /// Segments received since the last acknowledgement.
    pub n_unacknowledged: u8,
    /// Whether the range that came early ends with the server's FIN.
    pub is_early_end: bool,
    /// The server said that it closes the connection after this answer.
    pub is_last: bool,
    /// Which port of its slot the connection has.
    pub port_idx: u16,
    /// The request was due in the measured window, so its times count. Only an open load asks; user space writes it.
    pub is_measured: bool,
    /// The first byte of the range that came early. The bytes are not kept, since nobody reads them.
    pub early_from: u32,
    /// The end of that range; equal to its start if there is none.
    pub early_to: u32,
    /// Whole answers since the slot is in use.
    pub n_answered: u32,
    /// The server ended the connection while it was idle.
    pub is_ended_by_server: bool,
    /// User space takes the row: the program leaves it alone. Only user space writes this.
    pub is_taken: bool,
    /// User space follows an answer that the program cannot: its segments go there. The program says so, and user space takes it back.
    pub is_away: bool,
}

/// The number of 64-bit words of a row.
pub const ROW_WORDS: usize = 8;

/// Offsets in a row, in bytes, as the program reads it.
pub mod offset {
    pub const UNACKNOWLEDGED: i16 = 0;
    pub const SEND_NEXT: i16 = 4;
    pub const RECEIVE_NEXT: i16 = 8;
    pub const LEFT: i16 = 12;
    pub const STARTED_AT: i16 = 16;
    pub const ACTIVE_AT: i16 = 24;
    pub const STATE: i16 = 32;
    pub const N_UNACKNOWLEDGED: i16 = 33;
    pub const EARLY_END: i16 = 34;
    pub const LAST: i16 = 35;
    pub const PORT_IDX: i16 = 36;
    pub const MEASURED: i16 = 38;
    pub const EARLY_FROM: i16 = 40;
    pub const EARLY_TO: i16 = 44;
    pub const N_ANSWERED: i16 = 48;
    pub const ENDED_BY_SERVER: i16 = 52;
    pub const TAKEN: i16 = 56;
    pub const AWAY: i16 = 60;
}

/// The word that holds the state.
pub const STATE_WORD: usize = 4;
/// The word of [`Connection::is_taken`] and [`Connection::is_away`]: zero if the program goes on.
pub const TAKEN_WORD: usize = 7;
/// The bits of [`Connection::is_taken`] in it.
pub const TAKEN_MASK: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
/// The value of [`Connection::is_taken`] in it.
pub const TAKEN: u64 = if cfg!(target_endian = "little") { 1 } else { 1 << 32 };

impl Connection {
    /// The connection in a row.
    #[must_use]
    pub fn from_row(row: &[u64; ROW_WORDS]) -> Self {
        let halves = |word: u64| {
            let bytes = word.to_ne_bytes();
            let half = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("a word has two halves"));
            (half(0), half(4))
        };
        let ((unacknowledged, send_next), (receive_next, left)) = (halves(row[0]), halves(row[1]));
        let [state, n_unacknowledged, early_end, last, port_low, port_high, measured, _] =
            row[STATE_WORD].to_ne_bytes();
        let ((early_from, early_to), (n_answered, ended)) = (halves(row[5]), halves(row[6]));
        let (taken, away) = halves(row[TAKEN_WORD]);
        Self {
            unacknowledged,
            send_next,
            receive_next,
            left,
            started_at: row[2],
            active_at: row[3],
            state: State::numbered(state),
            n_unacknowledged,
            is_early_end: early_end != 0,
            is_last: last != 0,
            port_idx: u16::from_ne_bytes([port_low, port_high]),
            is_measured: measured != 0,
            early_from,
            early_to,
            n_answered,
            is_ended_by_server: ended != 0,
            is_taken: taken != 0,
            is_away: away != 0,
        }
    }

    /// The row of a connection.
    #[must_use]
    pub fn row(&self) -> [u64; ROW_WORDS] {
        let word = |first: u32, second: u32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&first.to_ne_bytes());
            bytes[4..].copy_from_slice(&second.to_ne_bytes());
            u64::from_ne_bytes(bytes)
        };
        let [port_low, port_high] = self.port_idx.to_ne_bytes();
        let state = [
            self.state as u8,
            self.n_unacknowledged,
            u8::from(self.is_early_end),
            u8::from(self.is_last),
            port_low,
            port_high,
            u8::from(self.is_measured),
            0,
        ];
        [
            word(self.unacknowledged, self.send_next),
            word(self.receive_next, self.left),
            self.started_at,
            self.active_at,
            u64::from_ne_bytes(state),
            word(self.early_from, self.early_to),
            word(self.n_answered, u32::from(self.is_ended_by_server)),
            word(u32::from(self.is_taken), u32::from(self.is_away)),
        ]
    }
}
