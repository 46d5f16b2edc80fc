//! Where the program runs: what it is given of a frame there, and how it lets go of it.

use std::os::fd::OwnedFd;

use fathom_sys::bpf::{
    Assembler, Helper, IngressAction, IngressLink, LENGTH_OF_SEGMENTS, Label, Program, ProgramType,
    Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
    XdpAction, XdpLink, XdpMode,
};

use super::super::{DataPath, DeviceError};

// Places on the stack, beside those of the program.
/// The key of a look-up, or another word between two of them.
pub(super) const KEY: i16 = -4;
/// The context.
const CONTEXT: i16 = -32;

// Fields of `struct __sk_buff` in `linux/bpf.h`.
const LENGTH: i16 = 0;
const VLAN_TAG: i16 = 20;
const START: i16 = 76;
const END: i16 = 80;

/// The place in the receive path at which the program decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// In the driver (XDP): each frame as it was on the wire, before the kernel has done anything for it.
    Driver,
    /// At the ingress of the stack (TCX): packets of several segments come and leave as one.
    Ingress,
}

impl Hook {
    /// The hook of a data path; `None` if that has no program.
    pub(super) fn of(path: DataPath) -> Option<Self> {
        match path {
            DataPath::Nfqueue => None,
            DataPath::Xdp => Some(Self::Driver),
            DataPath::Tc => Some(Self::Ingress),
        }
    }

    pub(super) fn program_type(self) -> ProgramType {
        match self {
            Self::Driver => ProgramType::XdpLongFrames,
            Self::Ingress => ProgramType::Ingress,
        }
    }

    /// Attaches a program until the descriptor is closed.
    pub(super) fn attach(self, program: &Program, index: u32, interface: &str) -> Result<OwnedFd, DeviceError> {
        let attached = match self {
            Self::Driver => XdpLink::attach(program, index, XdpMode::Native).map(OwnedFd::from),
            Self::Ingress => IngressLink::attach(program, index).map(OwnedFd::from),
        };
        attached.map_err(|error| self.refused(interface, error))
    }

    fn refused(self, interface: &str, error: fathom_sys::Error) -> DeviceError {
        let interface = interface.to_owned();
        match (self, error.errno()) {
            (Self::Driver, Some(EOPNOTSUPP)) => DeviceError::NoNativeXdp(interface),
            (Self::Driver, Some(EBUSY | EEXIST)) => DeviceError::OtherProgram(interface),
            (Self::Ingress, Some(EINVAL)) => DeviceError::NoIngressPrograms,
            _ if error.is_permission() => DeviceError::NoPrograms,
            _ => DeviceError::Kernel { attempt: "attach the program of the fast path", source: error },
        }
    }

    /// Takes the context from `R1`: `R6` becomes it, `R7` the frame, `R8` the end of what the program sees of it.
    ///
    /// So many bytes are seen if the frame has them. Jumps to `others` for a frame with a VLAN tag beside it.
    pub(super) fn begin(self, a: &mut Assembler, n_seen: i32, others: Label) {
        a.mov(R6, R1);
        if self == Self::Driver {
            a.load(R7, R6.word(0)).load(R8, R6.word(4));
            return;
        }
        let (wanted, is_seen) = (a.label(), a.label());
        a.store(R10.double(CONTEXT), R6).load(R2, R6.word(VLAN_TAG)).jump_if(R2.differs(0), others);
        a.load(R3, R6.word(LENGTH)).jump_if(R3.below(n_seen), wanted).mov(R3, n_seen).bind(wanted);
        a.load(R7, R6.word(START)).load(R8, R6.word(END));
        // Drivers and tunnels may keep all but the first bytes of a packet elsewhere.
        let is_hidden = a.label();
        a.mov(R2, R7).add(R2, R3).jump_if(R2.above(R8), is_hidden).jump(is_seen).bind(is_hidden);
        a.mov(R1, R6).mov(R2, R3).call(Helper::PullData);
        a.load(R7, R6.word(START)).load(R8, R6.word(END)).bind(is_seen);
    }

    /// Turns the context in `R6` into the length of the frame. Keeps `R3`, a number of 16 bits, and `R7` to `R9`.
    pub(super) fn measure(self, a: &mut Assembler) {
        match self {
            Self::Driver => {
                a.store(R10.word(KEY), R3).mov(R1, R6).call(Helper::FrameLength).mov(R6, R0);
                a.load(R3, R10.word(KEY))
            }
            Self::Ingress => a.load(R6, R6.word(LENGTH)),
        };
    }

    /// Jumps to `too_long` if the link of the way at `R9` does not carry the frame, whose length is `R6`.
    pub(super) fn check_length(self, a: &mut Assembler, too_long: Label) {
        match self {
            Self::Driver => a.load(R1, R9.word(4)).jump_if(R6.above(R1), too_long),
            Self::Ingress => {
                a.load(R1, R10.double(CONTEXT)).load(R2, R9.word(0)).store(R10.word(KEY), 0);
                a.mov(R3, R10).add(R3, i32::from(KEY)).mov(R4, 0).mov(R5, LENGTH_OF_SEGMENTS);
                a.call(Helper::CheckLength).jump_if(R0.differs(0), too_long)
            }
        };
    }

    /// Tells that a half-word of the frame became less by one. An IPv4 header need not tell it, because its own checksum outweighs it.
    pub(super) fn tell_one_less(self, a: &mut Assembler) {
        if self == Self::Ingress {
            // In the ones' complement, so much more is one less.
            let one_less = i32::from((!1_u16).to_be());
            a.load(R1, R10.double(CONTEXT)).mov(R2, one_less).call(Helper::ChecksumUpdate);
        }
    }

    /// The value with which the program leaves a frame to the stack.
    pub(super) fn pass(self) -> i32 {
        match self {
            Self::Driver => XdpAction::Pass.into(),
            Self::Ingress => IngressAction::Next.into(),
        }
    }

    /// The value with which it sends a frame to a link.
    #[cfg(test)]
    pub(super) fn redirect(self) -> i32 {
        match self {
            Self::Driver => XdpAction::Redirect.into(),
            Self::Ingress => IngressAction::Redirect.into(),
        }
    }
}

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
