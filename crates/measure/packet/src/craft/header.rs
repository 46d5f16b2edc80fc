//! The headers that can be sent, as tables of their fields and possible contents.
//!
//! Both the parser of lines and the frame builder use these tables, so each header is described once. Bit offsets count from the
//! first bit of the header, as in the diagrams of the RFCs.

/// The description of a header.
#[derive(Debug)]
pub(super) struct HeaderSpec {
    pub(super) kind: HeaderKind,
    /// Its keyword in a line.
    pub(super) keyword: &'static str,
    /// The length in bytes without options.
    pub(super) length: usize,
    /// The fields whose values follow the header keyword without a field keyword.
    pub(super) positional: PositionalFields,
    pub(super) fields: &'static [FieldSpec],
    /// Keywords for single values of a field.
    pub(super) names: &'static [ValueName],
    /// Keywords for the part after the fixed header.
    pub(super) options: &'static [(&'static str, OptionSyntax)],
    pub(super) ethertype: Option<u16>,
    /// Its IP protocol number.
    pub(super) protocol: Option<u8>,
    /// How it identifies the next header.
    pub(super) next: NextHeaderField,
}

/// The headers that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderKind {
    Ethernet,
    Vlan,
    Mpls,
    Arp,
    Ipv4,
    Ipv6,
    /// An IPv6 extension header whose second byte is its length.
    Ipv6Options,
    Ipv6Fragment,
    Udp,
    Tcp,
    Icmp,
    Icmpv6,
}

/// The values directly after the keyword of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PositionalFields {
    /// No value.
    None,
    /// The value of this field.
    Field(&'static str),
    /// Source and destination with `>` between them; either may be absent.
    Pair(&'static str, &'static str),
}

/// How a header identifies the next header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextHeaderField {
    /// By an `EtherType` in this field.
    EtherType(&'static str),
    /// By an IP protocol number in this field.
    Protocol(&'static str),
    /// Only by the bottom-of-stack bit in this field (MPLS).
    Label(&'static str),
    /// No header follows.
    Nothing,
}

/// A field of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FieldSpec {
    /// Its keyword in a line.
    pub(super) keyword: &'static str,
    /// The offset of its first bit.
    pub(super) bit: usize,
    /// The number of bits.
    pub(super) bits: usize,
    /// How its values are written.
    pub(super) notation: Notation,
    /// The range of a plain `?`, from the lowest to the highest value. `None` if a random value could be the address of any
    /// stranger.
    pub(super) any: Option<(u128, u128)>,
}

/// How the values of a field are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    /// Decimal, or hexadecimal after `0x`.
    Number,
    /// Six bytes with colons between them.
    Mac,
    /// Four bytes with dots between them.
    Ipv4,
    /// As in RFC 4291.
    Ipv6,
    /// The first letters of TCP flags, such as `SA`, or a number.
    TcpFlags,
}

/// A keyword for a value.
#[derive(Debug)]
pub(super) struct ValueName {
    pub(super) keyword: &'static str,
    pub(super) field: &'static str,
    pub(super) value: u128,
}

/// The syntax of an option after the fixed part of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionSyntax {
    /// Bytes in hexadecimal.
    Hex,
    /// A TCP option: its kind, and the lengths of its numbers.
    Tcp(u8, &'static [usize]),
}

const fn number(word: &'static str, bit: usize, bits: usize) -> FieldSpec {
    let any = if bits <= 32 { Some((0, (1 << bits) - 1)) } else { None };
    FieldSpec { keyword: word, bit, bits, notation: Notation::Number, any }
}

/// A port field, with the range that RFC 4814 lets testers choose from.
const fn port(word: &'static str, bit: usize, any: (u128, u128)) -> FieldSpec {
    FieldSpec { any: Some(any), ..number(word, bit, 16) }
}

/// A MAC address field. Random values are locally administered addresses.
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

/// The client ports of RFC 4814.
pub(super) const CLIENT_PORTS: (u128, u128) = (1024, 65_535);
/// The server ports of RFC 4814.
pub(super) const SERVER_PORTS: (u128, u128) = (1, 49_151);

const VLAN_FIELDS: &[FieldSpec] =
    &[number("prio", 0, 3), number("dei", 3, 1), number("id", 4, 12), number("type", 16, 16)];
const EXTENSION_FIELDS: &[FieldSpec] = &[number("next", 0, 8), number("length", 8, 8)];
const EXTENSION_EXTRAS: &[(&str, OptionSyntax)] = &[("data", OptionSyntax::Hex)];

/// A VLAN tag. Its `EtherType` is in the header before it.
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

/// An IPv6 extension header with options or data.
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

/// All headers, from the outermost to the innermost.
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
        // MPLS label stack entry (RFC 3032).
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

/// The eight bytes of ICMP and `ICMPv6` headers.
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
    /// Finds the header with this keyword.
    #[must_use]
    pub(super) fn find(word: &str) -> Option<&'static Self> {
        HEADERS.iter().find(|header| header.keyword == word)
    }

    /// Finds the field with this keyword.
    #[must_use]
    pub(super) fn field(&self, word: &str) -> Option<&'static FieldSpec> {
        self.fields.iter().find(|field| field.keyword == word)
    }
}

impl FieldSpec {
    /// The largest value that fits.
    #[must_use]
    pub(super) const fn max(&self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// Writes a value into a header.
    ///
    /// # Panics
    /// If the header is too short.
    pub(super) fn put(&self, header: &mut [u8], value: u128) {
        let (start, end) = self.byte_range();
        let shift = end * 8 - self.bit - self.bits;
        // A field that is not byte-aligned has at most 32 bits, so it fits together with the bits around it.
        let mut all = header[start..end].iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        all = all & !(self.max() << shift) | value << shift;
        let bytes = all.to_be_bytes();
        header[start..end].copy_from_slice(&bytes[bytes.len() - (end - start)..]);
    }

    /// The byte range of the field: its first byte, and the byte after the last.
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
