//! `fathom generate`: man pages and completions, from the same tables as the command line.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

use fathom_run::exit::Exit;

pub(super) fn define(command: Command) -> Command {
    let folder = || {
        Arg::new("folder")
            .value_name("FOLDER")
            .required(true)
            .value_parser(clap::value_parser!(PathBuf))
            .help("where to write")
    };
    let shell =
        Arg::new("shell").value_name("SHELL").required(true).value_parser(clap::value_parser!(Shell)).help("shell");
    command
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("man").about("Write a man page per command").arg(folder()))
        .subcommand(Command::new("completions").about("Print completions for a shell").arg(shell))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    match matches.subcommand() {
        Some(("man", given)) => {
            let folder = given.get_one::<PathBuf>("folder").expect("clap requires the folder");
            fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
            clap_mangen::generate_to(super::define(), folder)
                .with_context(|| format!("cannot write man pages to {}", folder.display()))?;
        }
        Some((_, given)) => {
            let shell = given.get_one::<Shell>("shell").copied().expect("clap requires the shell");
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut super::define(), "fathom", &mut script);
            std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
        }
        None => unreachable!("clap requires a subcommand"),
    }
    Ok(Exit::Pass)
}
