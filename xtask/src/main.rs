//! Developer tasks of the workspace: `cargo xtask tidy`, `cargo xtask schema`, `cargo xtask test-vm`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for developers talks to its terminal")]

mod circles;
mod devices;
mod fault_case;
mod fault_pairs;
mod fault_variants;
mod faulty_lab;
mod finding_page;
mod findings;
mod foreign_servers;
mod lab_truth;
mod option_reads;
mod schema;
mod tidy;
mod vm;

use std::{path::Path, process::ExitCode};

type Task = fn(&Path) -> anyhow::Result<Vec<String>>;
/// Each task with its options.
const TASKS: &[(&str, &[&str], Task)] = &[
    ("tidy", &[], tidy::check),
    ("schema", &[], schema::write),
    ("test-vm", &[], vm::test_vm),
    ("findings", &["--busy", "--ci", "--pairs", "--seed", "--servers", "--short", "--write"], findings::prove),
    ("devices", &["--ci", "--short", "--write"], devices::prove),
];

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let asked = std::env::args().nth(1).unwrap_or_default();
    let task = TASKS.iter().find(|(name, ..)| *name == asked);
    let is_known = |options: &[&str]| {
        std::env::args().skip(2).all(|word| !word.starts_with('-') || options.contains(&word.as_str()))
    };
    let Some((_, _, chore)) = task.filter(|(_, options, _)| is_known(options)) else {
        let usages = TASKS.iter().filter(|(name, ..)| task.is_none_or(|(asked, ..)| asked == name));
        for (name, options, _) in usages {
            eprintln!("usage: cargo xtask {}", [&[*name], *options].concat().join(" "));
        }
        return ExitCode::from(2);
    };
    match chore(&root) {
        Ok(faults) if faults.is_empty() => {
            println!("{asked}: nothing to object to");
            ExitCode::SUCCESS
        }
        Ok(faults) => {
            eprintln!("{}\n{asked}: {} faults", faults.join("\n"), faults.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{asked}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
