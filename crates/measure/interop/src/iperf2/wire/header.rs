//! The header of a client: the first bytes of a TCP connection, and bytes 16 on of every datagram.

use fathom_model::units::Nanos;

use super::{DATAGRAM_LEN, halves, put, put_time, time, word};

/// The longest header that a server reads over TCP.
pub const HEADER_MAX: usize = 256;
/// The bytes of a datagram that a full header takes, with the number and the time before it.
pub const UDP_HEADER_LEN: usize = DATAGRAM_LEN + EXTENDED_LEN + FRAMES_LEN + START_LEN + FRAME_SETTINGS_LEN;

/// Version 1.7's part.
const BASE_LEN: usize = 24;
/// The base and the part that the flag `EXTENDED` announces.
const EXTENDED_LEN: usize = BASE_LEN + 36;
/// The start time and the pacing rate.
const START_LEN: usize = 20;
/// Fields of video frames, in datagrams only.
const FRAMES_LEN: usize = 32;
const FRAME_SETTINGS_LEN: usize = 32;

/// Flags in the first word.
mod flag {
    pub(super) const VERSION_1: u32 = 0x8000_0000;
    pub(super) const EXTENDED: u32 = 0x4000_0000;
    pub(super) const UDP_TESTS: u32 = 0x2000_0000;
    pub(super) const KEY: u32 = 0x1000_0000;
    pub(super) const WIDE_NUMBERS: u32 = 0x0800_0000;
    pub(super) const VERSION_2: u32 = 0x0400_0000;
    pub(super) const PEER_DETECT: u32 = 0x0200_0000;
    pub(super) const BOUNCE_BACK: u32 = 0x0080_0000;
    pub(super) const HAS_LENGTH: u32 = 0x0001_0000;
    pub(super) const LENGTH: u32 = 0x0000_01fe;
    pub(super) const RUN_NOW: u32 = 0x0000_0001;
}

/// Flags in the upper half-word of the extended part.
mod upper {
    pub(super) const FRAMES: u16 = 0x0001;
    pub(super) const L2_CHECK: u16 = 0x0004;
    pub(super) const NO_FIN: u16 = 0x0008;
    pub(super) const TRIP_TIMES: u16 = 0x0010;
    pub(super) const RATE_IN_PACKETS: u16 = 0x0080;
    pub(super) const REVERSE: u16 = 0x0400;
    pub(super) const FULL_DUPLEX: u16 = 0x0800;
    pub(super) const BURSTS: u16 = 0x2000;
}

/// Offsets in the header.
mod at {
    pub(super) const N_FLOWS: usize = 4;
    pub(super) const PORT: usize = 8;
    pub(super) const LENGTH: usize = 12;
    pub(super) const AMOUNT: usize = 20;
    pub(super) const UPPER: usize = 32;
    pub(super) const VERSION: usize = 36;
    pub(super) const TOS: usize = 46;
    pub(super) const RATE: usize = 48;
    /// Behind the extended part over TCP; datagrams have the fields of frames in between.
    pub(super) const START: usize = super::EXTENDED_LEN + 4;
}

/// The version that our header names: 2.1.8, whose messages these are.
const VERSION: (u32, u32) = (0x0002_0001, 0x0008_0003);

/// What the client and the server send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TestMode {
    /// The client sends.
    #[default]
    Forward,
    /// The server sends over the client's connection (`-R`).
    Reverse,
    /// Both send over the client's connection (`--full-duplex`).
    FullDuplex,
    /// The server sends over a connection of its own at the same time (`-d`).
    Dual,
    /// The server sends over a connection of its own afterwards (`-r`).
    Tradeoff,
}

/// How much the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestAmount {
    /// For a time, in units of 10 ms on the wire.
    Time(Nanos),
    /// A number of bytes, 31 bits on the wire.
    Bytes(u64),
}

impl Default for TestAmount {
    fn default() -> Self {
        Self::Time(Nanos::from_secs(10))
    }
}

/// The wishes of a client.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag on the wire")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientHeader {
    pub mode: TestMode,
    /// The number of parallel flows (`-P`).
    pub n_flows: u32,
    /// The port for a connection of the server (`-L`).
    pub port: u16,
    /// Bytes per write or datagram (`-l`); `None` for the server's default.
    pub length: Option<u32>,
    /// How much the server sends.
    pub amount: TestAmount,
    /// Whether the part since 2.0.10 is there, with the fields below.
    pub is_extended: bool,
    /// The version of the client as two words; zero before 2.0.10.
    pub version: (u32, u32),
    /// The type of service (`-S`).
    pub tos: u8,
    /// The rate limit (`-b`) in bits per second.
    pub rate: Option<u64>,
    /// When the client began, on its wall clock; present with `--trip-times`.
    pub trip_start: Option<Nanos>,
    /// Whether the client waits for the server's acknowledgement (`-X`).
    pub detects_peer: bool,
    /// Whether numbers of datagrams have 64 bits.
    pub has_wide_numbers: bool,
    /// Whether no report is wanted at the end (`--no-udp-fin`).
    pub has_no_fin: bool,
    /// A test that this program does not do.
    pub foreign: Option<&'static str>,
}

/// The length of a header, by its first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderLen {
    /// The client sends none (`-C`, and other programs).
    None,
    /// It has this many bytes.
    Bytes(usize),
    /// It is no header that a server could read.
    Invalid,
}

/// Returns the length of a header over TCP by its first four bytes.
#[must_use]
pub fn header_len(first: [u8; 4]) -> HeaderLen {
    let flags = u32::from_be_bytes(first);
    if flags & flag::BOUNCE_BACK != 0 && flags & (flag::EXTENDED | flag::VERSION_1) == 0 {
        return HeaderLen::Bytes(4);
    }
    if flags & (flag::VERSION_1 | flag::VERSION_2 | flag::EXTENDED) == 0 {
        return HeaderLen::None;
    }
    if flags & flag::HAS_LENGTH != 0 {
        let length = usize::try_from((flags & flag::LENGTH) >> 1).expect("9 bits");
        return if (BASE_LEN..=HEADER_MAX).contains(&length) { HeaderLen::Bytes(length) } else { HeaderLen::Invalid };
    }
    let is_long = flags & (flag::VERSION_2 | flag::EXTENDED) != 0;
    HeaderLen::Bytes(if is_long { EXTENDED_LEN } else { BASE_LEN })
}

/// Reads the header in a datagram, whichever version wrote it; `None` if it has none.
#[must_use]
pub fn read_datagram(datagram: &[u8]) -> Option<ClientHeader> {
    /// Before 2.0.10 the number had 32 bits only, so the header began four bytes earlier.
    const OLD: usize = 12;
    let flags = word(datagram, DATAGRAM_LEN)?;
    let is_new = flags & (flag::VERSION_1 | flag::VERSION_2 | flag::EXTENDED) != 0;
    if is_new && datagram.len() >= DATAGRAM_LEN + BASE_LEN {
        return ClientHeader::read(&datagram[DATAGRAM_LEN..], FRAMES_LEN);
    }
    let is_old = word(datagram, OLD)? & !flag::RUN_NOW == flag::VERSION_1 && datagram.len() >= OLD + BASE_LEN;
    is_old.then(|| ClientHeader::read(&datagram[OLD..OLD + BASE_LEN], 0)).flatten()
}

impl ClientHeader {
    /// Reads the header at the beginning of a TCP connection; `None` if it is too short.
    #[must_use]
    pub fn read_stream(bytes: &[u8]) -> Option<Self> {
        Self::read(bytes, 0)
    }

    /// Reads a header with a gap before the start time.
    fn read(bytes: &[u8], gap: usize) -> Option<Self> {
        let flags = word(bytes, 0)?;
        if flags & flag::BOUNCE_BACK != 0 && flags & (flag::EXTENDED | flag::VERSION_1) == 0 {
            return Some(Self { foreign: Some("--bounceback"), ..Self::default() });
        }
        let amount = word(bytes, at::AMOUNT)?.cast_signed();
        let amount = match u64::try_from(amount) {
            Ok(bytes) => TestAmount::Bytes(bytes),
            Err(_) => TestAmount::Time(Nanos::from_millis(10) * u64::from(amount.unsigned_abs())),
        };
        let mut header = Self {
            mode: match (flags & flag::VERSION_1 != 0 && flags & flag::VERSION_2 == 0, flags & flag::RUN_NOW != 0) {
                (false, _) => TestMode::Forward,
                (true, true) => TestMode::Dual,
                (true, false) => TestMode::Tradeoff,
            },
            n_flows: word(bytes, at::N_FLOWS)?,
            port: u16::try_from(word(bytes, at::PORT)?).unwrap_or(0),
            length: word(bytes, at::LENGTH).filter(|length| *length > 0),
            amount,
            detects_peer: flags & flag::PEER_DETECT != 0,
            has_wide_numbers: flags & flag::WIDE_NUMBERS != 0,
            foreign: (flags & flag::KEY != 0).then_some("--permit-key"),
            ..Self::default()
        };
        if flags & flag::EXTENDED != 0 && bytes.len() >= EXTENDED_LEN {
            header.read_extension(bytes, flags, gap);
        }
        Some(header)
    }

    fn read_extension(&mut self, bytes: &[u8], flags: u32, gap: usize) {
        let upper = word(bytes, at::UPPER).map_or(0, |word| u16::try_from(word >> 16).expect("16 bits"));
        let has = |bit: u16| upper & bit != 0;
        let number = |at: usize| word(bytes, at).unwrap_or(0);
        self.is_extended = true;
        self.version = (number(at::VERSION), number(at::VERSION + 4));
        self.tos = bytes[at::TOS + 1];
        // The upper half is shifted by a byte (`Settings_GenerateClientHdr`).
        let rate = u64::from(number(at::RATE)) | (u64::from(number(at::RATE + 4) >> 8) << 32);
        self.rate = Some(rate).filter(|rate| *rate > 0);
        self.has_no_fin = has(upper::NO_FIN);
        if has(upper::TRIP_TIMES) {
            self.trip_start = time(bytes, at::START + gap);
        }
        if flags & flag::VERSION_2 != 0 && has(upper::FULL_DUPLEX) {
            self.mode = TestMode::FullDuplex;
            self.foreign = Some("--full-duplex");
        } else if flags & flag::VERSION_2 != 0 && has(upper::REVERSE) {
            self.mode = TestMode::Reverse;
        }
        let foreign = [
            (upper::FRAMES, "--isochronous"),
            (upper::BURSTS, "--burst-period"),
            (upper::L2_CHECK, "--l2checks"),
            (upper::RATE_IN_PACKETS, "-b in packets per second"),
        ];
        self.foreign = self.foreign.or(foreign.iter().find(|(bit, _)| has(*bit)).map(|(_, name)| *name));
    }

    /// Writes the header for the beginning of a TCP connection.
    #[must_use]
    pub fn write_stream(&self) -> Vec<u8> {
        let length = EXTENDED_LEN + if self.trip_start.is_some() { START_LEN } else { 0 };
        let mut bytes = vec![0; length];
        let mut flags = flag::EXTENDED | self.mode_flags();
        if self.detects_peer {
            flags |= flag::PEER_DETECT | flag::VERSION_2;
        }
        self.write(&mut bytes, (flags, length), 0);
        bytes
    }

    /// Writes the header into a datagram behind the number and the time, as far as there is room.
    pub fn write_datagram(&self, datagram: &mut [u8]) {
        let mut bytes = [0; UDP_HEADER_LEN - DATAGRAM_LEN];
        let mut flags = flag::EXTENDED | flag::WIDE_NUMBERS | self.mode_flags();
        if self.mode == TestMode::Reverse || self.trip_start.is_some() || self.has_no_fin {
            flags |= flag::UDP_TESTS;
        }
        let frames = if self.trip_start.is_some() { FRAMES_LEN } else { 0 };
        self.write(&mut bytes, (flags, DATAGRAM_LEN + EXTENDED_LEN + frames), FRAMES_LEN);
        let room = datagram.get_mut(DATAGRAM_LEN..).unwrap_or_default();
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
    }

    fn mode_flags(&self) -> u32 {
        match self.mode {
            TestMode::Forward => 0,
            TestMode::Reverse | TestMode::FullDuplex => flag::VERSION_2,
            TestMode::Dual => flag::VERSION_1 | flag::RUN_NOW,
            TestMode::Tradeoff => flag::VERSION_1,
        }
    }

    fn write(&self, bytes: &mut [u8], (flags, length): (u32, usize), gap: usize) {
        put(bytes, 0, flags | flag::HAS_LENGTH | u32::try_from(length << 1).expect("a header is short"));
        put(bytes, at::N_FLOWS, self.n_flows);
        put(bytes, at::PORT, self.port.into());
        put(bytes, at::LENGTH, self.length.unwrap_or(0));
        let amount = match self.amount {
            TestAmount::Time(span) => {
                let units = u32::try_from(span.0 / 10_000_000).unwrap_or(u32::MAX).min(i32::MAX.unsigned_abs());
                units.wrapping_neg()
            }
            TestAmount::Bytes(bytes) => halves(bytes).0 & 0x7fff_ffff,
        };
        put(bytes, at::AMOUNT, amount);
        let mut upper = 0;
        let marks = [
            (self.mode == TestMode::Reverse, upper::REVERSE),
            (self.mode == TestMode::FullDuplex, upper::FULL_DUPLEX),
            (self.trip_start.is_some(), upper::TRIP_TIMES),
            (self.has_no_fin, upper::NO_FIN),
        ];
        marks.iter().filter(|(is_set, _)| *is_set).for_each(|(_, bit)| upper |= bit);
        put(bytes, at::UPPER, u32::from(upper) << 16);
        put(bytes, at::VERSION, VERSION.0);
        put(bytes, at::VERSION + 4, VERSION.1);
        bytes[at::TOS + 1] = self.tos;
        let (low, high) = halves(self.rate.unwrap_or(0));
        put(bytes, at::RATE, low);
        put(bytes, at::RATE + 4, high << 8);
        if let Some(start) = self.trip_start {
            put_time(bytes, at::START + gap, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        HEXLOWER.decode(hex.as_bytes()).unwrap()
    }

    /// What iperf 2.1.8 of Debian 12 sends, up to the end of the header.
    const FORWARD: &str = "4001007800000001000017d40000000000000000ffffff9c000000000000000000000000000200010008000300000000000000000000000000000000";
    const PARALLEL: &str = "4001007800000002000017d40000200000000000fffffed4000000000000000000000000000200010008000300000010800000000000020000000000";
    const REVERSE: &str = "4401007800000001000017d40000000000000000ffffff38000000000000000004000000000200010008000300000000000000000000000000000000";
    const DUAL: &str = "c001007900000001000017d90000000000000000ffffff38000000000000000000000000000200010008000300000000000000000000000000000000";
    const TRADEOFF: &str = "c001007800000001000017d9000000000000000000100000000000000000000000000000000200010008000300000000000000000000000000000000";
    const TRIP_TIMES: &str = "400100a000000001000017d40000000000000000ffffff9c000000000000000000100000000200010008000300000000000000000000000000000000000000006b06d8c30008008b0000000000000000";
    const DETECT: &str = "4601007800000001000017d40000000000000000ffffff9c000000000000000000000000000200010008000300000000000000000000000000000000";

    fn ours(header: ClientHeader) -> ClientHeader {
        ClientHeader { n_flows: 1, port: 6100, is_extended: true, version: VERSION, ..header }
    }

    fn time(centis: u64) -> TestAmount {
        TestAmount::Time(Nanos::from_millis(10) * centis)
    }

    #[test]
    fn headers_over_tcp_are_those_of_the_real_iperf() {
        let cases = [
            (FORWARD, ours(ClientHeader { amount: time(100), ..ClientHeader::default() })),
            (
                PARALLEL,
                ClientHeader {
                    n_flows: 2,
                    length: Some(8192),
                    tos: 0x10,
                    rate: Some(10_000_000_000 * 1_073_741_824 / 1_000_000_000),
                    amount: time(300),
                    ..ours(ClientHeader::default())
                },
            ),
            (REVERSE, ours(ClientHeader { mode: TestMode::Reverse, amount: time(200), ..ClientHeader::default() })),
            (
                DUAL,
                ClientHeader { port: 6105, mode: TestMode::Dual, amount: time(200), ..ours(ClientHeader::default()) },
            ),
            (
                TRADEOFF,
                ClientHeader {
                    port: 6105,
                    mode: TestMode::Tradeoff,
                    amount: TestAmount::Bytes(1 << 20),
                    ..ours(ClientHeader::default())
                },
            ),
            (
                TRIP_TIMES,
                ClientHeader {
                    trip_start: Some(Nanos::from_secs(0x6b06_d8c3) + Nanos::from_micros(0x8008b)),
                    amount: time(100),
                    ..ours(ClientHeader::default())
                },
            ),
            (DETECT, ours(ClientHeader { detects_peer: true, amount: time(100), ..ClientHeader::default() })),
        ];
        for (hex, expected) in cases {
            let real = bytes(hex);
            let first = *real.first_chunk().unwrap();
            assert_eq!(header_len(first), HeaderLen::Bytes(real.len()), "{hex}");
            let read = ClientHeader::read_stream(&real).unwrap();
            assert_eq!(read, expected, "{hex}");
            assert_eq!(HEXLOWER.encode(&read.write_stream()), hex);
        }
    }

    /// The beginning of a datagram of `iperf -u -R`, and of `iperf -u -d -L 6105`, behind the number and the time.
    const UDP_REVERSE: &str =
        "6c01009800000001000017d50000000000000000ffffff3800000000000000000400000000020001000800030000000000100000";
    const UDP_DUAL: &str =
        "c801009900000001000017d90000000000000000ffffff3800000000000000000000000000020001000800030000000000100000";
    const UDP_TRIP_TIMES: &str = "680100d800000001000017d50000000000000000ffffff9c000000000000000000100000000200010008000300000000001000000000000000000000";

    #[test]
    fn headers_in_datagrams_are_those_of_the_real_iperf() {
        let rate = Some(1 << 20);
        let cases = [
            (UDP_REVERSE, TestMode::Reverse, 6101, None, 200),
            (UDP_DUAL, TestMode::Dual, 6105, None, 200),
            (UDP_TRIP_TIMES, TestMode::Forward, 6101, Some(Nanos::from_secs(5)), 100),
        ];
        for (hex, mode, port, trip_start, centis) in cases {
            let header = ClientHeader {
                mode,
                port,
                rate,
                trip_start,
                amount: time(centis),
                has_wide_numbers: true,
                ..ours(ClientHeader::default())
            };
            let mut datagram = [0xee; 1470];
            header.write_datagram(&mut datagram);
            assert_eq!(HEXLOWER.encode(&datagram[16..16 + hex.len() / 2]), hex);
            assert_eq!(datagram[..16], [0xee; 16], "the number and the time are written elsewhere");
            assert_eq!(read_datagram(&datagram), Some(header), "{hex}");
            let mut short = [0; 40];
            header.write_datagram(&mut short);
            assert_eq!(read_datagram(&short).map(|header| (header.is_extended, header.port)), Some((false, port)));
        }
    }

    #[test]
    fn other_programs_and_very_old_clients_are_told_apart() {
        assert_eq!(header_len(*b"0123"), HeaderLen::None, "iperf -C");
        assert_eq!(header_len(*b"GET "), HeaderLen::Invalid, "letters with the bits of a header, whose length is none");
        assert_eq!(header_len([0x80, 0, 0, 1]), HeaderLen::Bytes(24), "1.7");
        assert_eq!(header_len([0x40, 0, 0, 0]), HeaderLen::Bytes(60), "2.0.10");
        assert_eq!(header_len([0x40, 1, 0, 2]), HeaderLen::Invalid, "shorter than any header");
        assert_eq!(read_datagram(&[0x30; 100]).map(|header| header.mode), None, "a pattern of digits");
        let mut old = [0; 100];
        old[12..16].copy_from_slice(&[0x80, 0, 0, 0]);
        old[20..24].copy_from_slice(&5002_u32.to_be_bytes());
        let header = read_datagram(&old).unwrap();
        assert_eq!((header.mode, header.port, header.has_wide_numbers), (TestMode::Tradeoff, 5002, false), "2.0.5");
        for length in 0..40 {
            assert_eq!(read_datagram(&vec![0xff; length]), None, "{length}");
        }
    }
}
