//! Where a kind stands on the command line. The program reads it here, and names no kind itself.

use fathom_model::units::Nanos;

/// How the command of a layer reaches a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandDoc {
    /// The word of `--test`, or of `--protocol` for a kind that speaks to another tool's server.
    pub word: &'static str,
    /// Whether the word is one of `--protocol`.
    pub is_protocol: bool,
    /// The direction of the kind. Kinds of one layer with the same word differ by it.
    pub direction: DataDirection,
    /// Options that mean this kind where `--test` is not given.
    pub implied_by: &'static [&'static str],
    /// A scan that is made unless its option has a value: `direction=none,up,down,both`.
    pub scan: Option<&'static str>,
    /// The measured time of the only round, for a kind that counts what others send, without a warm-up.
    pub single_round: Option<Nanos>,
}

/// Which end sends, as seen from the host of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataDirection {
    /// From here to the target; a kind with an option for the direction, or without any direction, is here too.
    Up,
    /// From the target to here.
    Down,
    /// Both at once.
    Both,
    /// Any: the hosts of the test change places, or a second test runs the other way.
    ByHosts,
}

impl CommandDoc {
    /// A kind with a word of `--test`.
    #[must_use]
    pub const fn test(word: &'static str) -> Self {
        let direction = DataDirection::Up;
        Self { word, is_protocol: false, direction, implied_by: &[], scan: None, single_round: None }
    }

    /// A kind with a word of `--protocol`.
    #[must_use]
    pub const fn protocol(word: &'static str) -> Self {
        Self { is_protocol: true, ..Self::test(word) }
    }

    /// The same in a direction.
    #[must_use]
    pub const fn direction(self, direction: DataDirection) -> Self {
        Self { direction, ..self }
    }

    /// The same, meant by options.
    #[must_use]
    pub const fn implied_by(self, options: &'static [&'static str]) -> Self {
        Self { implied_by: options, ..self }
    }
}

/// Options of a kind by name, as texts.
pub type OptionTexts = &'static [(&'static str, &'static str)];

/// A row of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationRow {
    /// The name of the test.
    pub name: &'static str,
    /// The options that differ from the defaults.
    pub options: OptionTexts,
}

/// How the tool's own ceiling of a kind is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingSetup {
    /// The options with which the kind is fastest.
    pub options: OptionTexts,
    /// Whether it needs a device that carries frames, which a lab has, in place of loopback.
    pub needs_lab: bool,
}
