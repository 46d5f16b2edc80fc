//! Programs that pass some of their frames, drop the rest, and count both.

use fathom_model::units::Frames;
use fathom_sys::{
    Result,
    bpf::{
        Assembler, Label, PerCpuArray, Program, ProgramType,
        Register::{R0, R10},
        XdpAction, XdpLink, XdpMode,
    },
};

use super::{FrameMatch, KEY, RedirectTarget, add_to_word};

/// The counts of a drop program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Frames that continued to the network stack or to another device.
    pub passed: Frames,
    /// Frames that the program dropped.
    pub dropped: Frames,
}

/// A program that drops some of its frames. It works once it is attached.
#[derive(Debug)]
pub struct DropProgram {
    program: Program,
    counts: PerCpuArray<2>,
}

/// The exits of a drop program.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExitLabels {
    pub(super) pass: Label,
    pub(super) drop: Label,
    /// For frames that cannot be decided: they pass uncounted.
    pub(super) leave: Label,
}

impl DropProgram {
    /// Loads a drop program whose decision `decide` assembles. The decision ends in a jump, or falls through to drop the frame.
    ///
    /// `R7` is the frame. `decide` must preserve it if frames are redirected to the device `onward` instead of the network stack.
    pub(super) fn load(
        name: &str,
        matching: FrameMatch,
        onward: Option<RedirectTarget>,
        decide: impl FnOnce(&mut Assembler, ExitLabels),
    ) -> Result<Self> {
        let fates = PerCpuArray::create("fathom_fates", 1)?;
        let mut a = Assembler::new();
        let exits = ExitLabels { pass: a.label(), drop: a.label(), leave: a.label() };
        matching.assemble(&mut a, exits.leave);
        decide(&mut a, exits);
        a.bind(exits.drop).store(R10.word(KEY), 0).look_up(&fates, KEY, exits.leave);
        add_to_word(&mut a, R0, 8, 1);
        a.give(XdpAction::Drop);
        a.bind(exits.pass).store(R10.word(KEY), 0).look_up(&fates, KEY, exits.leave);
        add_to_word(&mut a, R0, 0, 1);
        if let Some(onward) = onward {
            onward.assemble(&mut a);
        }
        a.bind(exits.leave).give(XdpAction::Pass);
        let program = Program::load(ProgramType::Xdp, name, &a.assemble())?;
        Ok(Self { program, counts: fates })
    }

    /// Returns the program that runs for each frame.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Attaches the program to a device of this network namespace, for as long as the link lives.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver has no native mode, `EBUSY` if the device already has a program.
    pub fn attach(&self, ifindex: u32, mode: XdpMode) -> Result<XdpLink> {
        XdpLink::attach(&self.program, ifindex, mode)
    }

    /// Returns the counts since it was loaded.
    ///
    /// # Errors
    /// Never, as long as the kernel keeps its map.
    pub fn counts(&self) -> Result<DropCounts> {
        let [passed, dropped] = self.counts.sum(0)?;
        Ok(DropCounts { passed: Frames(passed), dropped: Frames(dropped) })
    }
}
