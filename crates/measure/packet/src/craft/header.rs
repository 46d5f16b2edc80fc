//! The headers that can be sent, as tables: their fields, and what each may carry.
//!
//! Reading a line and building a frame both go by these tables, so a header is described once. Places are counted in bits from the
//! first of the header, as in the RFCs' drawings.

/// A header.
#[derive(Debug)]
pub(super) struct HeaderSpec {
    /// Which it is.
    pub(super) kind: HeaderKind,
    /// What it is called in a line.
    pub(super) keyword: &'static str,
    /// Its length in bytes without options.
    pub(super) length: usize,
    /// The fields that are written without a word in front.
    pub(super) positional: PositionalFields,
    /// The fields it has.
    pub(super) fields: &'static [FieldSpec],
    /// Words that stand for a value of a field.
    pub(super) names: &'static [ValueName],
    /// Words for what stands behind the fixed part.
    pub(super) options: &'static [(&'static str, OptionSyntax)],
    /// Its number among what Ethernet carries.
    pub(super) ethertype: Option<u16>,
    /// Its number among what IP carries.
    pub(super) protocol: Option<u8>,
    /// What it says of what follows.
    pub(super) next: NextHeaderField,
}

/// The headers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderKind {
    Ethernet,
    Vlan,
    Mpls,
    Arp,
    Ipv4,
    Ipv6,
    /// An extension header of IPv6 whose second byte is its length.
    Ipv6Options,
    Ipv6Fragment,
    Udp,
    Tcp,
    Icmp,
    Icmpv6,
}

/// What is written right behind the word of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PositionalFields {
    /// Nothing.
    None,
    /// The value of this field.
    Field(&'static str),
    /// Two values with `>` between, either of which may be absent: where from, where to.
    Pair(&'static str, &'static str),
}

/// How a header says what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextHeaderField {
    /// With a number of Ethernet's in this field.
    EtherType(&'static str),
    /// With a number of IP's in this field.
    Protocol(&'static str),
    /// Not at all but for the last of a stack, by this bit: a label of MPLS.
    Label(&'static str),
    /// No header follows it.
    Nothing,
}

/// A number within a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FieldSpec {
    /// What it is called in a line.
    pub(super) keyword: &'static str,
    /// Its first bit.
    pub(super) bit: usize,
    /// How many bits it has.
    pub(super) bits: usize,
    /// How its values are written.
    pub(super) notation: Notation,
    /// What `?` alone stands for: the lowest and the highest value; none where that could be any stranger.
    pub(super) any: Option<(u128, u128)>,
}

/// How the values of a field are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    /// In decimal, or in hexadecimal behind `0x`.
    Number,
    /// Six bytes with colons between.
    Mac,
    /// Four bytes with dots between.
    Ipv4,
    /// As in RFC 4291.
    Ipv6,
    /// The first letters of TCP's flags, such as `SA`, or a number.
    TcpFlags,
}

/// A word for a value.
#[derive(Debug)]
pub(super) struct ValueName {
    /// The word.
    pub(super) keyword: &'static str,
    /// The field.
    pub(super) field: &'static str,
    /// The value.
    pub(super) value: u128,
}

/// What stands behind the fixed part of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionSyntax {
    /// Bytes in hexadecimal.
    Hex,
    /// An option of TCP: its kind, and the lengths of the numbers in it.
    Tcp(u8, &'static [usize]),
}

const fn number(word: &'static str, bit: usize, bits: usize) -> FieldSpec {
    let any = if bits <= 32 { Some((0, (1 << bits) - 1)) } else { None };
    FieldSpec { keyword: word, bit, bits, notation: Notation::Number, any }
}

/// A port, and those that RFC 4814 has testers choose from.
const fn port(word: &'static str, bit: usize, any: (u128, u128)) -> FieldSpec {
    FieldSpec { any: Some(any), ..number(word, bit, 16) }
}

/// An address of a device; any is one of those that belong to no maker.
const fn mac(word: &'static str, bit: usize) -> FieldSpec {
    FieldSpec { keyword: word, bit, bits: 48, notation: Notation::Mac, any: Some((0x0200_0000_0000, 0x0200_ffff_ffff)) }
}

const fn ipv4(word: &'static str, bit: usize) -> FieldSpec {
    FieldSpec { keyword: word, bit, bits: 32, notation: Notation::Ipv4, any: None }
}

const fn ipv6(word: &'static str, bit: usize) -> FieldSpec {
    FieldSpec { keyword: word, bit, bits: 128, notation: Notation::Ipv6, any: None }
}

const fn name(word: &'static str, field: &'static str, value: u128) -> ValueName {
    ValueName { keyword: word, field, value }
}

/// The ports that clients use, as RFC 4814.
pub(super) const CLIENT_PORTS: (u128, u128) = (1024, 65_535);
/// The ports that servers use, as RFC 4814.
pub(super) const SERVER_PORTS: (u128, u128) = (1, 49_151);

const VLAN_FIELDS: &[FieldSpec] =
    &[number("prio", 0, 3), number("dei", 3, 1), number("id", 4, 12), number("type", 16, 16)];
const EXTENSION_FIELDS: &[FieldSpec] = &[number("next", 0, 8), number("length", 8, 8)];
const EXTENSION_EXTRAS: &[(&str, OptionSyntax)] = &[("data", OptionSyntax::Hex)];

/// A VLAN tag; its type of frame stands in the header before it.
const fn vlan(word: &'static str, ethertype: u16) -> HeaderSpec {
    HeaderSpec {
        kind: HeaderKind::Vlan,
        keyword: word,
        length: 4,
        positional: PositionalFields::Field("id"),
        fields: VLAN_FIELDS,
        names: &[],
        options: &[],
        ethertype: Some(ethertype),
        protocol: None,
        next: NextHeaderField::EtherType("type"),
    }
}

/// An extension header of IPv6 with options or data of its own.
const fn extension(word: &'static str, protocol: u8) -> HeaderSpec {
    HeaderSpec {
        kind: HeaderKind::Ipv6Options,
        keyword: word,
        length: 2,
        positional: PositionalFields::None,
        fields: EXTENSION_FIELDS,
        names: &[],
        options: EXTENSION_EXTRAS,
        ethertype: None,
        protocol: Some(protocol),
        next: NextHeaderField::Protocol("next"),
    }
}

/// All headers, from the outside to the inside.
pub(super) static HEADERS: &[HeaderSpec] = &[
    HeaderSpec {
        kind: HeaderKind::Ethernet,
        keyword: "eth",
        // Ethernet II (IEEE 802.3).
        length: 14,
        positional: PositionalFields::Pair("src", "dst"),
        fields: &[mac("dst", 0), mac("src", 48), number("type", 96, 16)],
        names: &[],
        options: &[],
        ethertype: None,
        protocol: None,
        next: NextHeaderField::EtherType("type"),
    },
    // IEEE 802.1Q.
    vlan("vlan", 0x8100),
    // The outer tag of QinQ: IEEE 802.1ad.
    vlan("svlan", 0x88a8),
    HeaderSpec {
        kind: HeaderKind::Mpls,
        keyword: "mpls",
        // A label of MPLS (RFC 3032).
        length: 4,
        positional: PositionalFields::Field("label"),
        fields: &[number("label", 0, 20), number("tc", 20, 3), number("bottom", 23, 1), number("ttl", 24, 8)],
        names: &[],
        options: &[],
        ethertype: Some(0x8847),
        protocol: None,
        next: NextHeaderField::Label("bottom"),
    },
    HeaderSpec {
        kind: HeaderKind::Arp,
        keyword: "arp",
        // ARP for IPv4 over Ethernet (RFC 826).
        length: 28,
        positional: PositionalFields::Pair("spa", "tpa"),
        fields: &[
            number("htype", 0, 16),
            number("ptype", 16, 16),
            number("hlen", 32, 8),
            number("plen", 40, 8),
            number("op", 48, 16),
            mac("sha", 64),
            ipv4("spa", 112),
            mac("tha", 144),
            ipv4("tpa", 192),
        ],
        names: &[name("request", "op", 1), name("reply", "op", 2)],
        options: &[],
        ethertype: Some(0x0806),
        protocol: None,
        next: NextHeaderField::Nothing,
    },
    IPV4,
    IPV6,
    // Hop-by-hop options: RFC 8200 section 4.3.
    extension("hop", 0),
    // Destination options: RFC 8200 section 4.6.
    extension("dest", 60),
    // Routing header: RFC 8200 section 4.4.
    extension("route", 43),
    HeaderSpec {
        kind: HeaderKind::Ipv6Fragment,
        keyword: "frag",
        // Fragment header of IPv6 (RFC 8200 section 4.5).
        length: 8,
        positional: PositionalFields::None,
        fields: &[number("next", 0, 8), number("offset", 16, 13), number("more", 31, 1), number("id", 32, 32)],
        names: &[name("more", "more", 1)],
        options: &[],
        ethertype: None,
        protocol: Some(44),
        next: NextHeaderField::Protocol("next"),
    },
    HeaderSpec {
        kind: HeaderKind::Udp,
        keyword: "udp",
        // UDP (RFC 768).
        length: 8,
        positional: PositionalFields::Pair("src", "dst"),
        fields: &[
            port("src", 0, CLIENT_PORTS),
            port("dst", 16, SERVER_PORTS),
            number("length", 32, 16),
            number("checksum", 48, 16),
        ],
        names: &[],
        options: &[],
        ethertype: None,
        protocol: Some(17),
        next: NextHeaderField::Nothing,
    },
    TCP,
    ICMP,
    ICMPV6,
];

const IPV4: HeaderSpec = HeaderSpec {
    kind: HeaderKind::Ipv4,
    keyword: "ip",
    // IPv4 (RFC 791).
    length: 20,
    positional: PositionalFields::Pair("src", "dst"),
    fields: &[
        number("version", 0, 4),
        number("ihl", 4, 4),
        number("tos", 8, 8),
        number("dscp", 8, 6),
        number("ecn", 14, 2),
        number("length", 16, 16),
        number("id", 32, 16),
        number("evil", 48, 1),
        number("df", 49, 1),
        number("mf", 50, 1),
        number("offset", 51, 13),
        number("ttl", 64, 8),
        number("proto", 72, 8),
        number("checksum", 80, 16),
        ipv4("src", 96),
        ipv4("dst", 128),
    ],
    names: &[name("evil", "evil", 1), name("df", "df", 1), name("mf", "mf", 1)],
    options: &[("options", OptionSyntax::Hex)],
    ethertype: Some(0x0800),
    protocol: Some(4),
    next: NextHeaderField::Protocol("proto"),
};

const IPV6: HeaderSpec = HeaderSpec {
    kind: HeaderKind::Ipv6,
    keyword: "ip6",
    // IPv6 (RFC 8200).
    length: 40,
    positional: PositionalFields::Pair("src", "dst"),
    fields: &[
        number("version", 0, 4),
        number("class", 4, 8),
        number("dscp", 4, 6),
        number("ecn", 10, 2),
        number("label", 12, 20),
        number("length", 32, 16),
        number("next", 48, 8),
        number("hops", 56, 8),
        ipv6("src", 64),
        ipv6("dst", 192),
    ],
    names: &[],
    options: &[],
    ethertype: Some(0x86dd),
    protocol: Some(41),
    next: NextHeaderField::Protocol("next"),
};

const TCP: HeaderSpec = HeaderSpec {
    kind: HeaderKind::Tcp,
    keyword: "tcp",
    // TCP (RFC 9293).
    length: 20,
    positional: PositionalFields::Pair("src", "dst"),
    fields: &[
        port("src", 0, CLIENT_PORTS),
        port("dst", 16, SERVER_PORTS),
        number("seq", 32, 32),
        number("ack", 64, 32),
        number("offset", 96, 4),
        FieldSpec { notation: Notation::TcpFlags, ..number("flags", 104, 8) },
        number("window", 112, 16),
        number("checksum", 128, 16),
        number("urgent", 144, 16),
    ],
    names: &[],
    options: &[
        ("nop", OptionSyntax::Tcp(1, &[])),
        ("mss", OptionSyntax::Tcp(2, &[2])),
        ("wscale", OptionSyntax::Tcp(3, &[1])),
        ("sackok", OptionSyntax::Tcp(4, &[])),
        ("timestamps", OptionSyntax::Tcp(8, &[4, 4])),
        ("options", OptionSyntax::Hex),
    ],
    ethertype: None,
    protocol: Some(6),
    next: NextHeaderField::Nothing,
};

/// What ICMP of both versions has in its eight bytes.
const ICMP_FIELDS: &[FieldSpec] = &[
    number("type", 0, 8),
    number("code", 8, 8),
    number("checksum", 16, 16),
    number("rest", 32, 32),
    number("id", 32, 16),
    number("seq", 48, 16),
    number("mtu", 32, 32),
];

const ICMP: HeaderSpec = HeaderSpec {
    kind: HeaderKind::Icmp,
    keyword: "icmp",
    // ICMP (RFC 792).
    length: 8,
    positional: PositionalFields::None,
    fields: ICMP_FIELDS,
    names: &[
        name("echo", "type", 8),
        name("reply", "type", 0),
        name("unreachable", "type", 3),
        name("redirect", "type", 5),
        name("exceeded", "type", 11),
        name("timestamp", "type", 13),
    ],
    options: &[],
    ethertype: None,
    protocol: Some(1),
    next: NextHeaderField::Nothing,
};

const ICMPV6: HeaderSpec = HeaderSpec {
    kind: HeaderKind::Icmpv6,
    keyword: "icmp6",
    // ICMPv6 (RFC 4443).
    names: &[
        name("echo", "type", 128),
        name("reply", "type", 129),
        name("unreachable", "type", 1),
        name("toobig", "type", 2),
        name("exceeded", "type", 3),
        name("parameter", "type", 4),
    ],
    protocol: Some(58),
    ..ICMP
};

impl HeaderSpec {
    /// The header of this name.
    #[must_use]
    pub(super) fn find(word: &str) -> Option<&'static Self> {
        HEADERS.iter().find(|header| header.keyword == word)
    }

    /// The field of this name.
    #[must_use]
    pub(super) fn field(&self, word: &str) -> Option<&'static FieldSpec> {
        self.fields.iter().find(|field| field.keyword == word)
    }
}

impl FieldSpec {
    /// The greatest value that fits.
    #[must_use]
    pub(super) const fn max(&self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// Writes a value into a header.
    ///
    /// # Panics
    /// When the header is too short.
    pub(super) fn put(&self, header: &mut [u8], value: u128) {
        let (start, end) = self.byte_range();
        let shift = end * 8 - self.bit - self.bits;
        // A field that does not begin with a byte has at most 32 bits, so what stands around it fits too.
        let mut all = header[start..end].iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        all = all & !(self.max() << shift) | value << shift;
        let bytes = all.to_be_bytes();
        header[start..end].copy_from_slice(&bytes[bytes.len() - (end - start)..]);
    }

    /// The bytes it lies in: the first, and the one behind the last.
    #[must_use]
    pub(super) const fn byte_range(&self) -> (usize, usize) {
        (self.bit / 8, (self.bit + self.bits).div_ceil(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lies_within_its_header_and_every_word_is_there_once() {
        let mut words: Vec<_> = HEADERS.iter().map(|header| header.keyword).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), HEADERS.len());
        for header in HEADERS {
            for (at, field) in header.fields.iter().enumerate() {
                assert!(field.bit + field.bits <= header.length * 8, "{} {}", header.keyword, field.keyword);
                assert!(
                    header.fields[at + 1..].iter().all(|other| other.keyword != field.keyword),
                    "{}",
                    field.keyword
                );
                assert!(field.any.is_none_or(|(low, high)| low <= high && high <= field.max()), "{}", field.keyword);
            }
            for name in header.names {
                assert!(name.value <= header.field(name.field).unwrap().max(), "{} {}", header.keyword, name.keyword);
            }
            let (PositionalFields::Pair(..) | PositionalFields::Field(_) | PositionalFields::None) = header.positional;
            let named = match header.positional {
                PositionalFields::Pair(one, other) => vec![one, other],
                PositionalFields::Field(one) => vec![one],
                PositionalFields::None => vec![],
            };
            assert!(named.into_iter().all(|word| header.field(word).is_some()), "{}", header.keyword);
        }
    }

    #[test]
    fn a_value_is_put_between_what_stands_around_it() {
        let mut header = [0xff; 4];
        let vlan = HeaderSpec::find("vlan").unwrap();
        vlan.field("id").unwrap().put(&mut header, 0x064);
        assert_eq!(header, [0xf0, 0x64, 0xff, 0xff]);
        let mut header = [0; 40];
        let address = 0x2001_0db8_0000_0000_0000_0000_0000_0001;
        HeaderSpec::find("ip6").unwrap().field("dst").unwrap().put(&mut header, address);
        assert_eq!(header[24..28], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!((header[23], header[39]), (0, 1));
    }
}
