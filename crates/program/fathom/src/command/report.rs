//! `fathom report`: prints a saved result again, in any format, or a recording of `fathom watch` or sysstat.

use std::{
    fs::File,
    io::{self, BufReader, Read as _, Write},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command};
use fathom_report::{formats::TextStyle, write_history_html, write_history_text};
use fathom_run::{
    exit::{Exit, UserError},
    files::{self, FileReaders},
    output, registry, store,
};
use fathom_watch::{history, recording};

pub(super) fn define(command: Command) -> Command {
    let run =
        Arg::new("run").value_name("RUN").default_value(store::LATEST).value_parser(clap::value_parser!(PathBuf)).help(
            "the folder of a run, its run.json, its ID, or `latest`; or a recording of `fathom watch` or `sadf -j`",
        );
    let file = Arg::new("file")
        .long("file")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help("write to this file; its ending chooses the format unless --format does");
    command
        .arg(run)
        .arg(file)
        .args(output::arguments())
        .after_help("Examples:\n  fathom report                                            the newest run under runs/\n  fathom report 2026-11-21-0923-a1f3 --csv\n  fathom report runs/2026-11-21-0923-a1f3 --file report.html\n  fathom report incident.ndjson --file incident.html        a recording of fathom watch")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let word = matches.get_one::<PathBuf>("run").expect("it has a default");
    let path = store::find_run(word)?;
    if path.is_file() && is_recording(&path)? {
        return report_recording(&path, matches);
    }
    let run = store::read_run(&path)?;
    let Some(file) = matches.get_one::<PathBuf>("file") else { return output::print(&run, matches) };
    let format = output::format(&format_name(matches, file))?;
    files::write_whole(file, FileReaders::Anyone, |out| Ok(format.write(&run, out)?))?;
    Ok(output::exit_for(&run, output::Strictness::of(matches)))
}

/// Returns the name of the format for a file: as typed, or by the ending of the file.
fn format_name(matches: &ArgMatches, file: &Path) -> String {
    let ending = file.extension().unwrap_or_default().to_string_lossy().into_owned();
    let by_ending = if ending == "txt" { "text".to_owned() } else { ending };
    matches.get_one::<String>("format").cloned().unwrap_or(by_ending)
}

/// The longest beginning of a file that shows whether it is a recording.
const BEGIN_MAX: u64 = 256;

/// Returns true if a file is a recording of `fathom watch` or a file of `sadf -j`, and no document of a run.
fn is_recording(path: &Path) -> anyhow::Result<bool> {
    let mut begin = Vec::new();
    let opened = File::open(path).and_then(|file| file.take(BEGIN_MAX).read_to_end(&mut begin));
    opened.map_err(|error| {
        UserError::new(Exit::Usage, format!("cannot read {}", path.display())).with_line("why", error.to_string())
    })?;
    let bare: Vec<u8> = begin.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
    Ok(bare.starts_with(b"{\"sysstat\"") || bare.starts_with(b"{\"schema\":\"fathom.watch-recording/"))
}

fn report_recording(path: &Path, matches: &ArgMatches) -> anyhow::Result<Exit> {
    let unusable =
        |why: String| UserError::new(Exit::Usage, format!("cannot report on {}", path.display())).with_line("why", why);
    let file = matches.get_one::<PathBuf>("file");
    let format = match file {
        Some(file) => format_name(matches, file),
        None => output::format_name(matches).to_owned(),
    };
    if !["text", "html"].contains(&format.as_str()) {
        return Err(unusable(format!("a report on a recording is text or html, and `{format}` is asked for"))
            .with_line("use", format!("fathom watch --replay {} --ndjson        # every interval", path.display()))
            .into());
    }
    let input = File::open(path).map_err(|error| unusable(error.to_string()))?;
    let mut stream = recording(BufReader::new(input)).map_err(|error| unusable(error.to_string()))?;
    let history = history(stream.as_mut(), &super::measurement::command_line(), registry::TOOL)
        .map_err(|error| unusable(error.to_string()))?;
    let write = |style: TextStyle, out: &mut dyn Write| match format.as_str() {
        "html" => write_history_html(&history, out),
        _ => write_history_text(&history, style, out),
    };
    match file {
        Some(file) => {
            files::write_whole(file, FileReaders::Anyone, |mut out| Ok(write(TextStyle::PLAIN, &mut out)?))?;
        }
        None => write(output::text_style(), &mut io::stdout().lock())?,
    }
    Ok(Exit::Pass)
}
