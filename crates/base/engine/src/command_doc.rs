//! The place of a kind on the command line. The program reads it from the kind and hardcodes no kind.

use fathom_model::units::Nanos;

/// How the user selects a kind in the command of its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandDoc {
    /// The value of `--test`, of `--protocol` for a kind that talks to another tool's server, or of `--engine`.
    pub word: &'static str,
    /// True if the word is a value of `--protocol`.
    pub is_protocol: bool,
    /// The value of `--test` for a kind of a protocol with several tests.
    pub protocol_test: Option<&'static str>,
    /// True if the word is a value of `--engine`: the kind does what the tests of its layer do, in another way.
    pub is_engine: bool,
    /// The direction of the kind. It distinguishes kinds of one layer with the same word.
    pub direction: DataDirection,
    /// Options that select this kind if `--test` is not given.
    pub implied_by: &'static [&'static str],
    /// A scan that runs unless its option is set: `direction=none,up,down,both`.
    pub scan: Option<&'static str>,
    /// The measured time of the only round, for a kind that counts the traffic of others. Such a round has no warm-up.
    pub single_round: Option<Nanos>,
}

/// The end that sends, as seen from the host of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataDirection {
    /// From this host to the target. Also for a kind with an option for the direction, or without a direction.
    Up,
    /// From the target to this host.
    Down,
    /// Both directions at once.
    Both,
    /// Any direction: the hosts of the test swap places, or a second test runs in the other direction.
    ByHosts,
}

impl CommandDoc {
    /// Creates the entry of a kind with a value of `--test`.
    #[must_use]
    pub const fn test(word: &'static str) -> Self {
        let direction = DataDirection::Up;
        let protocol_test = None;
        let (is_protocol, is_engine) = (false, false);
        Self { word, is_protocol, protocol_test, is_engine, direction, implied_by: &[], scan: None, single_round: None }
    }

    /// Creates the entry of a kind with a value of `--protocol`.
    #[must_use]
    pub const fn protocol(word: &'static str) -> Self {
        Self { is_protocol: true, ..Self::test(word) }
    }

    /// Creates the entry of a kind with a value of `--engine`.
    #[must_use]
    pub const fn engine(word: &'static str) -> Self {
        Self { is_engine: true, ..Self::test(word) }
    }

    /// Returns the options that select the kind: `--test stream --direction down`.
    #[must_use]
    pub fn selection(&self) -> String {
        let option = match (self.is_protocol, self.is_engine) {
            (true, _) => "--protocol",
            (_, true) => "--engine",
            _ => "--test",
        };
        let direction = match self.direction {
            DataDirection::Up | DataDirection::ByHosts => "",
            DataDirection::Down => " --direction down",
            DataDirection::Both => " --direction both",
        };
        let test = self.protocol_test.map(|test| format!(" --test {test}")).unwrap_or_default();
        format!("{option} {}{test}{direction}", self.word)
    }

    /// Returns the same entry of a protocol for a value of `--test`.
    #[must_use]
    pub const fn for_test(self, word: &'static str) -> Self {
        Self { protocol_test: Some(word), ..self }
    }

    /// Returns the same entry with a direction.
    #[must_use]
    pub const fn direction(self, direction: DataDirection) -> Self {
        Self { direction, ..self }
    }

    /// Returns the same entry, implied by options.
    #[must_use]
    pub const fn implied_by(self, options: &'static [&'static str]) -> Self {
        Self { implied_by: options, ..self }
    }
}

/// Options of a kind as pairs of name and text.
pub type OptionTexts = &'static [(&'static str, &'static str)];

/// A row of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationRow {
    /// The name of the test.
    pub name: &'static str,
    /// The options that differ from the defaults.
    pub options: OptionTexts,
    /// Whether the row is left out where the hosts cannot run it, such as for want of a privilege. It is measured between one pair of hosts.
    pub is_optional: bool,
}

/// The setup in which the tool's own ceiling of a kind is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CeilingSetup {
    /// The options with which the kind is fastest.
    pub options: OptionTexts,
    /// True if it needs an interface that carries frames, as a lab has, instead of loopback.
    pub needs_lab: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_selected_by_its_word_and_its_direction() {
        assert_eq!(CommandDoc::test("rr").selection(), "--test rr");
        let down = CommandDoc::test("stream").direction(DataDirection::Down);
        assert_eq!(down.selection(), "--test stream --direction down");
        assert_eq!(CommandDoc::protocol("iperf3").selection(), "--protocol iperf3");
        assert_eq!(CommandDoc::engine("xdp").selection(), "--engine xdp");
    }
}
