//! The protocols in which a server tells who it is.

/// What a client of mconnect sends in a datagram.
pub(crate) const MCONNECT_HELLO: &[u8] = b"Hello";

/// A protocol of servers that tell who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Ours: each message comes back with the server's name and token.
    Fathom,
    /// ctraffic's echo: the first 64 bytes come back with the server's name over them, the rest as it was. Datagrams all have the name.
    Ctraffic,
    /// mconnect's greeting: the server writes its name when a connection opens, and again for everything that it reads.
    Mconnect,
}

impl Dialect {
    /// The words of the option.
    pub(crate) const WORDS: &'static [&'static str] = &["fathom", "ctraffic", "mconnect"];
    /// The words for tests whose messages have numbers, which a greeting does not return.
    pub(crate) const ECHO_WORDS: &'static [&'static str] = &["fathom", "ctraffic"];

    /// Returns the dialect with this word.
    pub(crate) fn of(word: &str) -> Option<Self> {
        match word {
            "fathom" => Some(Self::Fathom),
            "ctraffic" => Some(Self::Ctraffic),
            "mconnect" => Some(Self::Mconnect),
            _ => None,
        }
    }
}
