//! `fathom balancer`: the reference load balancer as a program, and its control.

mod counter_text;
mod counters;
mod flows;
mod kill;
mod queues;
mod run;
mod targets;

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_balancer::device::{self, ControlRequest, DeviceError, DeviceSettings};
use serde_json::Value;

use fathom_run::exit::{Exit, UserError};

const EXAMPLES: &str = "\
Examples:
  fathom lab up targets:4 --device balancer          a balancer before four targets, in a lab
  fathom lab exec targets dut -- fathom balancer counters
  fathom lab exec targets dut -- fathom balancer targets remove t2
  fathom balancer run --vip 198.18.8.1 --target t1=198.18.1.1 --target t2=198.18.1.2
                                                     on this host; ctrl-C ends it and undoes everything
  fathom balancer run --vip 198.18.8.1 --target t1=198.18.1.1 --target t2=198.18.1.2 --defect mis-hash=1/100
                                                     the same with a defect
  fathom balancer flows set 'web,ports=80,group=web'
  fathom balancer counters --json

A balancer belongs to a network namespace. Others in it find the balancer by its name: everybody may ask one of root, only its user and root may change it.";

/// One of the words behind `fathom balancer`.
struct Subcommand {
    name: &'static str,
    about: &'static str,
    define: fn(Command) -> Command,
    run: fn(&ArgMatches) -> anyhow::Result<Exit>,
}

const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand {
        name: "run",
        about: "Divide the packets for a virtual address among targets, until ctrl-C",
        define: run::define,
        run: run::run,
    },
    Subcommand {
        name: "targets",
        about: "The targets of a balancer that runs",
        define: targets::define,
        run: targets::run,
    },
    Subcommand {
        name: "flows",
        about: "The flow rules of a balancer that runs",
        define: flows::define,
        run: flows::run,
    },
    Subcommand {
        name: "queues",
        about: "Use the first N queues of a balancer that runs",
        define: queues::define,
        run: queues::run,
    },
    Subcommand {
        name: "counters",
        about: "What a balancer that runs has counted",
        define: counters::define,
        run: counters::run,
    },
    Subcommand {
        name: "kill",
        about: "Kill a balancer that runs, as a crash would: it undoes nothing, and packets pass unbalanced",
        define: kill::define,
        run: kill::run,
    },
];

pub(super) fn define(command: Command) -> Command {
    let shaped =
        |known: &Subcommand| super::help::with_help_layout((known.define)(Command::new(known.name).about(known.about)));
    command
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(SUBCOMMANDS.iter().map(shaped))
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (word, given) = matches.subcommand().expect("clap requires a subcommand");
    let known = SUBCOMMANDS.iter().find(|known| known.name == word).expect("clap knows the words of the table");
    (known.run)(given)
}

/// The option with the name of a balancer.
fn name() -> Arg {
    Arg::new("name")
        .long("name")
        .value_name("NAME")
        .default_value(DeviceSettings::NAME_DEFAULT)
        .help("name of the balancer in its network namespace")
}

/// The option for machines.
fn json() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help("print JSON")
}

/// Asks the balancer that the options name.
fn ask(matches: &ArgMatches, request: &ControlRequest) -> Result<Value, UserError> {
    let name = matches.get_one::<String>("name").expect("it has a default");
    device::ask(name, request).map_err(|error| user_error(&error))
}

/// Converts an error of the balancer into a user error.
fn user_error(error: &DeviceError) -> UserError {
    let exit = match error {
        DeviceError::BadTarget { .. } | DeviceError::TargetRefused { .. } | DeviceError::BadSetting { .. } => {
            Exit::Usage
        }
        _ => Exit::Preflight,
    };
    let mut shown = UserError::new(exit, error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        shown = shown.with_causes(cause);
    }
    match error.hint() {
        Some(hint) => shown.with_line("fix", hint),
        None => shown,
    }
}
