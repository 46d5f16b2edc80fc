//! `fathom as TOOL`: the face of a known tool.

use clap::{Arg, ArgMatches, Command};

use crate::{exit::Exit, face};

pub(super) fn shape(command: Command) -> Command {
    let tool = Arg::new("tool").value_name("TOOL").required(true).help("the tool to be");
    let words = Arg::new("words").value_name("ARGS").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    command.arg(tool).arg(words.help("the tool's own arguments"))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let tool = matches.get_one::<String>("tool").expect("clap requires the tool");
    let words: Vec<String> = matches.get_many::<String>("words").into_iter().flatten().cloned().collect();
    face::run(tool, &words)
}
