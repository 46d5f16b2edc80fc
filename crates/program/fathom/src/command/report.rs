//! `fathom report`: prints a saved result again, in any format.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use fathom_run::{
    exit::Exit,
    files::{self, FileReaders},
    output, store,
};

pub(super) fn define(command: Command) -> Command {
    let run = Arg::new("run")
        .value_name("RUN")
        .default_value(store::LATEST)
        .value_parser(clap::value_parser!(PathBuf))
        .help("the folder of a run, its run.json, its ID, or `latest`");
    let file = Arg::new("file")
        .long("file")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help("write to this file; its ending chooses the format unless --format does");
    command
        .arg(run)
        .arg(file)
        .args(output::arguments())
        .after_help("Examples:\n  fathom report                                            the newest run under runs/\n  fathom report 2026-11-21-0923-a1f3 --csv\n  fathom report runs/2026-11-21-0923-a1f3 --file report.html")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let run = store::read_run(&store::find_run(matches.get_one::<PathBuf>("run").expect("it has a default"))?)?;
    let Some(path) = matches.get_one::<PathBuf>("file") else { return output::print(&run, matches) };
    let ending = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    let name = matches.get_one::<String>("format").cloned().unwrap_or(if ending == "txt" {
        "text".to_owned()
    } else {
        ending
    });
    let format = output::format(&name)?;
    files::write_whole(path, FileReaders::Anyone, |out| Ok(format.write(&run, out)?))?;
    Ok(output::exit_for(&run, output::Strictness::of(matches)))
}
