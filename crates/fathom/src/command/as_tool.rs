//! `fathom as TOOL`: the face of a known tool.

use clap::{Arg, ArgMatches, Command};

use crate::{exit::Exit, face};

const EXAMPLES: &str = "\
Examples:
  fathom as wrk -t2 -c100 -d30s --latency http://127.0.0.1:8080/
  fathom as ab -n 10000 -c 20 -k http://127.0.0.1:8080/
  fathom as iperf3 -c 127.0.0.1 -t 10 -P 4 -R
  fathom as hping3 -S -p 8080 -c 3 127.0.0.1
  fathom as pktgen -i eth1 -d 10.0.0.2 -m 02:00:00:00:00:01 -n 1000000
  fathom as webbench -t 10 -c 50 http://127.0.0.1:8080/

A link named after the tool does the same. --fathom adds our own report behind the tool's text.";

pub(super) fn shape(command: Command) -> Command {
    let tool = Arg::new("tool").value_name("TOOL").required(true).help(format!("the tool to be: {}", face::names()));
    let words = Arg::new("words").value_name("ARGS").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    command.arg(tool).arg(words.help("the tool's own arguments")).after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let tool = matches.get_one::<String>("tool").expect("clap requires the tool");
    let words: Vec<String> = matches.get_many::<String>("words").into_iter().flatten().cloned().collect();
    face::run(tool, &words)
}
