//! `fathom as TOOL`: a drop-in for a known tool.

use clap::{ArgMatches, Command, value_parser};

use super::measurement;
use fathom_compat as compat;
use fathom_run::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  fathom as wrk -t2 -c100 -d30s --latency http://127.0.0.1:8080/
  fathom as --allow 192.0.2.7 wrk -t2 -c100 -d30s http://192.0.2.7/
  fathom as ab -n 10000 -c 20 -k http://127.0.0.1:8080/
  fathom as iperf3 -c 127.0.0.1 -t 10 -P 4 -R
  fathom as iperf -c 127.0.0.1 -u -b 100M -i 1
  fathom as hping3 -S -p 8080 -c 3 127.0.0.1
  fathom as pktgen -i eth1 -d 10.0.0.2 -m 02:00:00:00:00:01 -n 1000000
  fathom as --allow 192.0.2.9 tcpcopy -x 80-192.0.2.9:8080 -i eth0
  fathom as webbench -t 10 -c 50 http://127.0.0.1:8080/
  fathom as iperf3 --help                             the help of the tool

A link named after the tool does the same. --fathom adds our own report after the tool's text.";

pub(super) fn define(command: Command) -> Command {
    // All arguments after the tool belong to the tool, including -h and --version.
    command
        .override_usage("fathom as [--allow CIDR] TOOL [ARGS]...")
        .allow_external_subcommands(true)
        .external_subcommand_value_parser(value_parser!(String))
        .arg_required_else_help(true)
        .arg(measurement::allow())
        .after_help(format!("Tools: {}\n\n{EXAMPLES}", compat::names()))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let Some((tool, given)) = matches.subcommand() else { return compat::run("", &[], std::iter::empty()) };
    let words: Vec<String> = given.get_many::<String>("").into_iter().flatten().cloned().collect();
    compat::run(tool, &words, matches.get_many::<String>("allow").into_iter().flatten())
}
