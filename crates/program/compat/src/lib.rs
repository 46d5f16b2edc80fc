//! Drop-in command lines of known tools: their options into a plan, the result into their text. No drop-in tool has an engine of its own.

#[macro_use(eprint, eprintln)]
extern crate fathom_run;

mod ab;
mod closed_loop;
mod getopt;
mod hping3;
mod iperf3;
mod pktgen;
mod webbench;
mod wrk;

use std::path::Path;

use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError},
};

/// A drop-in tool: one row of the table, one file or folder beside this one.
pub struct CompatTool {
    /// The tool's name, also that of a link that selects the drop-in.
    pub name: &'static str,
    /// Starts it with the tool's own arguments; its exit codes are the tool's, except 3.
    start: fn(&[String], &AllowList) -> anyhow::Result<Exit>,
}

impl CompatTool {
    /// Runs it with the tool's own arguments, where `given` is allowed beside what is anyway.
    pub fn run<'a>(&self, words: &[String], given: impl Iterator<Item = &'a String>) -> anyhow::Result<Exit> {
        let shown = ["fathom", "as", self.name].into_iter().chain(words.iter().map(String::as_str));
        // A word with a zero byte cannot come from a command line.
        let command = shlex::try_join(shown).unwrap_or_else(|_| format!("fathom as {} …", self.name));
        (self.start)(words, &AllowList::load(given, command)?)
    }
}

/// All drop-in tools.
pub const COMPAT_TOOLS: &[CompatTool] = &[
    CompatTool { name: "ab", start: ab::run },
    CompatTool { name: "hping3", start: hping3::run },
    CompatTool { name: "iperf3", start: iperf3::run },
    CompatTool { name: "pktgen", start: pktgen::run },
    CompatTool { name: "webbench", start: webbench::run },
    CompatTool { name: "wrk", start: wrk::run },
];

/// Writes down a test of an iperf3 server that prints nothing, for a client that asks for the server's output.
pub fn iperf3_transcript() -> Box<dyn fathom_interop::iperf3::TestObserver> {
    iperf3::transcript()
}

/// The drop-in that the program's own name selects, as after `ln -s fathom wrk`.
pub fn from_program_name(words: &[String]) -> Option<&'static CompatTool> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    COMPAT_TOOLS.iter().find(|drop_in| drop_in.name == name)
}

/// Their names, for people.
pub fn names() -> String {
    COMPAT_TOOLS.iter().map(|drop_in| drop_in.name).collect::<Vec<_>>().join(", ")
}

/// Runs `fathom as [--allow CIDR] TOOL ARGS…`.
pub fn run<'a>(tool: &str, words: &[String], given: impl Iterator<Item = &'a String>) -> anyhow::Result<Exit> {
    if let Some(drop_in) = COMPAT_TOOLS.iter().find(|drop_in| drop_in.name == tool) {
        return drop_in.run(words, given);
    }
    let user_error =
        UserError::new(Exit::Usage, format!("there is no drop-in for `{tool}`")).with_line("tools", names());
    let native = native_command(tool).map_or(user_error, |native| {
        UserError::new(Exit::Usage, format!("there is no drop-in for `{tool}`")).with_line("use", native)
    });
    Err(native.into())
}

/// The command of ours that does the same work, for tools whose drop-in is not there.
fn native_command(tool: &str) -> Option<&'static str> {
    Some(match tool {
        "hey" | "h2load" => "fathom http URL --connections N --duration TIME",
        "iperf" => "fathom tcp TARGET --key KEY --flows N --duration TIME",
        "netperf" => "fathom tcp TARGET --key KEY --test rr",
        "netserver" => "fathom serve",
        "trafgen" => "fathom packet --lab pair --size 64",
        _ => return None,
    })
}
