//! Drop-in command lines of known tools. Most turn a tool's options into a plan and the result into the tool's output.
//!
//! iperf, iperf3, netperf, hping3 and pktgen run an engine in this process without a plan, and sar only reads counters.

#[macro_use(eprint, eprintln)]
extern crate fathom_run;

mod ab;
mod closed_loop;
mod ctraffic;
mod daemon;
mod getopt;
mod go_flags;
mod hping3;
mod iperf2;
mod iperf3;
mod mconnect;
mod netperf;
mod netserver;
mod pktgen;
mod sar;
mod stoppable;
mod tcpcopy;
mod webbench;
mod wrk;

use std::path::Path;

use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError},
};

/// A drop-in tool: one row of the table, and one file or folder of this crate.
pub struct CompatTool {
    /// The tool's name. A link with this name selects the drop-in.
    pub name: &'static str,
    /// Starts the drop-in with the tool's own arguments. Exit codes are the tool's, except 3.
    start: fn(&[String], &AllowList) -> anyhow::Result<Exit>,
}

impl CompatTool {
    /// Runs the drop-in with the tool's own arguments. `given` adds targets to the allow-list.
    pub fn run<'a>(&self, words: &[String], given: impl Iterator<Item = &'a String>) -> anyhow::Result<Exit> {
        let shown = ["fathom", "as", self.name].into_iter().chain(words.iter().map(String::as_str));
        // A command line cannot contain a zero byte.
        let command = shlex::try_join(shown).unwrap_or_else(|_| format!("fathom as {} …", self.name));
        (self.start)(words, &AllowList::load(given, command)?)
    }
}

/// All drop-in tools.
pub const COMPAT_TOOLS: &[CompatTool] = &[
    CompatTool { name: "ab", start: ab::run },
    CompatTool { name: "ctraffic", start: ctraffic::run },
    CompatTool { name: "hping3", start: hping3::run },
    CompatTool { name: "iperf", start: iperf2::run },
    CompatTool { name: "iperf3", start: iperf3::run },
    CompatTool { name: "mconnect", start: mconnect::run },
    CompatTool { name: "netperf", start: netperf::run },
    CompatTool { name: "netserver", start: netserver::run },
    CompatTool { name: "pktgen", start: pktgen::run },
    CompatTool { name: "sar", start: sar::run },
    CompatTool { name: "tcpcopy", start: tcpcopy::run },
    CompatTool { name: "webbench", start: webbench::run },
    CompatTool { name: "wrk", start: wrk::run },
];

/// Returns an observer that records a test as an iperf3 server prints it, for a client that requests the server's output.
pub fn iperf3_transcript() -> Box<dyn fathom_interop::iperf3::TestObserver> {
    iperf3::transcript()
}

/// Returns the drop-in selected by the program's own name, for example after `ln -s fathom wrk`.
pub fn from_program_name(words: &[String]) -> Option<&'static CompatTool> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    COMPAT_TOOLS.iter().find(|drop_in| drop_in.name == name)
}

/// Returns the names of all drop-ins, for messages.
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

/// Returns fathom's own command for the same work, for tools without a drop-in.
fn native_command(tool: &str) -> Option<&'static str> {
    Some(match tool {
        "hey" | "h2load" => "fathom http URL --connections N --duration TIME",
        "trafgen" => "fathom packet --lab pair --size 64",
        _ => return None,
    })
}
