//! Selects the frames that a program applies to.

use fathom_sys::bpf::{
    Assembler, Label, Operation,
    Register::{R1, R2, R3, R7, R8},
};

use fathom_wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, IS_FRAGMENT, Mark, MarkOffsets, PROTOCOL_UDP};

/// The frames that a program applies to; it ignores all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameMatch {
    /// Frames of one trial of fathom, with any headers.
    Marked {
        /// The tag at the start of the mark.
        tag: u32,
        /// The offset of the mark.
        at: usize,
    },
    /// Unfragmented UDP datagrams over IPv4 to this port.
    UdpPort(u16),
    /// All IPv4 and IPv6 packets.
    AnyIp,
}

// Byte offsets of fields from the start of the frame.
const ETHERTYPE: i16 = 12;
const VERSION_AND_LENGTH: i16 = 14;
const FRAGMENT: i16 = 20;
const PROTOCOL: i16 = 23;
const DESTINATION_PORT: i16 = 36;

impl FrameMatch {
    /// Jumps to `otherwise` for other frames. For matching frames, `R7` is the frame, checked to hold all bytes that were read.
    ///
    /// `R1` is the context that the program was called with. Clobbers `R1` to `R3` and `R8`.
    pub(super) fn assemble(self, a: &mut Assembler, otherwise: Label) {
        let length = match self {
            Self::Marked { at, .. } => at + Mark::LENGTH,
            Self::UdpPort(_) => MarkOffsets::START,
            Self::AnyIp => Ethernet::LENGTH,
        };
        // `struct xdp_md` starts with the addresses of the first byte of the frame and of the byte after its last.
        a.load(R7, R1.word(0)).load(R8, R1.word(4)).mov(R2, R7);
        a.add(R2, i32::try_from(length).expect("headers are short")).jump_if(R2.above(R8), otherwise);
        match self {
            Self::Marked { tag, at } => {
                let at = i16::try_from(at + Mark::TAG).expect("a mark lies near the beginning of its frame");
                let tag = u32::from_ne_bytes(tag.to_be_bytes());
                a.load(R2, R7.word(at)).load_constant(R3, tag.into()).jump_if(R2.differs(R3), otherwise);
            }
            Self::UdpPort(port) => udp_to(a, port, otherwise),
            Self::AnyIp => {
                let is_ip = a.label();
                a.load(R2, R7.half(ETHERTYPE)).jump_if(R2.equals(be16(ETHERTYPE_IPV4)), is_ip);
                a.jump_if(R2.differs(be16(ETHERTYPE_IPV6)), otherwise).bind(is_ip);
            }
        }
    }
}

/// Jumps to `otherwise` unless the frame is an unfragmented UDP datagram to this port, over IPv4 without options.
fn udp_to(a: &mut Assembler, port: u16, otherwise: Label) {
    a.load(R2, R7.half(ETHERTYPE)).jump_if(R2.differs(be16(ETHERTYPE_IPV4)), otherwise);
    a.load(R2, R7.byte(VERSION_AND_LENGTH)).jump_if(R2.differs(0x45), otherwise);
    a.load(R2, R7.half(FRAGMENT)).compute(Operation::And, R2, be16(IS_FRAGMENT)).jump_if(R2.differs(0), otherwise);
    a.load(R2, R7.byte(PROTOCOL)).jump_if(R2.differs(i32::from(PROTOCOL_UDP)), otherwise);
    a.load(R2, R7.half(DESTINATION_PORT)).jump_if(R2.differs(be16(port)), otherwise);
}

/// Returns the value of two big-endian bytes as loaded on this host.
fn be16(value: u16) -> i32 {
    i32::from(value.to_be())
}
