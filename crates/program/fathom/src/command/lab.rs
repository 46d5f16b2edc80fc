//! `fathom lab`: topologies in network namespaces.

use std::{
    io::{self, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::Command as Program,
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_lab::{
    Lab, LabName, Options, PRESETS, StateFolder, UPLINK,
    fault::{self, FAULTS, Fault, FaultPlace},
    guard,
    holder::{self, LabSpec},
    preset,
};
use fathom_model::units::Nanos;
use fathom_sys::process::{
    Pidfd,
    signal::{self, SignalsForChild},
};

use super::measurement;
use fathom_run::{
    device_programs::PacketPrograms,
    exit::{Exit, UserError},
    hosts,
};

const EXAMPLES: &str = "\
Examples:
  fathom lab up pair                       two hosts, a and b, up for an hour
  fathom lab up pair --name wall --device nft:1000
                                           the same with a packet filter of 1000 rules between them
  fathom lab exec pair b -- fathom serve   a command on a host
  fathom evaluate --lab pair               measure in the lab that is up
  fathom lab fault add pair shaper rate=50mbit
                                           plant a fault on host b, and see what fathom says about it
  fathom lab fault add pair quota cores=0.5 --host a
                                           tests and commands on host a share half a core
  fathom lab fault remove pair quota
  fathom tcp --lab pair --device impair:rst=0.1%,direction=back
                                           a path that resets connections, in a lab of its own
  fathom lab up targets:4 --device balancer
                                           a balancer before four targets (docs/balancer.md)
  fathom lab up targets:4 --device balancer --uplink dut=eth1,192.0.2.10/24
                                           the same, and other machines reach the balancer through eth1
  fathom lab down pair
  fathom lab down --stale                  undo what a killed run left behind";

pub(super) fn define(command: Command) -> Command {
    let name = || Arg::new("name").value_name("NAME").help("name of the lab");
    let presets: Vec<_> = PRESETS.iter().map(|preset| format!("{} ({})", preset.name, preset.about)).collect();
    let up = Command::new("up")
        .about("Put a lab up, held by a process of its own")
        .arg(
            Arg::new("preset")
                .value_name("PRESET")
                .default_value("pair")
                .help(format!("the topology: {}", presets.join("; "))),
        )
        .arg(name().long("name").help("the lab's name [default: the preset's]"))
        .arg(Arg::new("for").long("for").value_name("TIME").default_value("1h").help("lifetime of the lab"))
        .arg(measurement::device())
        .arg(direct_wire())
        .arg(uplink())
        .arg(mtu());
    let words = Arg::new("words")
        .value_name("COMMAND")
        .num_args(1..)
        .required(true)
        .trailing_var_arg(true)
        .allow_hyphen_values(true);
    let exec = Command::new("exec")
        .about("Run a command on a host of a lab that is up")
        .arg(name().required(true))
        .arg(Arg::new("host").value_name("HOST").required(true).help("name of the host"))
        .arg(words.help("the command and its arguments"));
    let stale = Arg::new("stale").long("stale").action(ArgAction::SetTrue).help("undo what killed runs left behind");
    let down = Command::new("down").about("Take a lab down").arg(name().required_unless_present("stale")).arg(stale);
    let hold = Command::new("hold").hide(true).arg(Arg::new("order").required(true));
    let guard = Command::new("guard").hide(true).arg(Arg::new("order").required(true));
    command
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([up, down, Command::new("list").about("The labs that are up"), exec, define_fault(), hold, guard])
        .after_help(EXAMPLES)
}

fn define_fault() -> Command {
    let lab = || Arg::new("name").value_name("LAB").required(true).help("name of the lab");
    let fault = || Arg::new("fault").value_name("FAULT").required(true).help("name of the fault");
    let values = Arg::new("values").value_name("NAME=VALUE").num_args(0..).help("values of the fault");
    let host = Arg::new("host").long("host").value_name("HOST").default_value("b").help("host that gets the fault");
    let only = Arg::new("host").long("host").value_name("HOST").help("undo it on this host alone");
    Command::new("fault")
        .about("Plant faults in a lab that is up")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            Command::new("list").about("All faults, or those planted in a lab").arg(lab().required(false)),
            Command::new("add").about("Plant a fault").args([lab(), fault(), values, host]),
            Command::new("remove").about("Undo a fault on each host that has it").args([lab(), fault(), only]),
        ])
}

fn direct_wire() -> Arg {
    Arg::new("direct-wire")
        .long("direct-wire")
        .action(ArgAction::SetTrue)
        .help("also join a and b by a second wire beside the device, on eth1, as `fathom path` does")
}

fn uplink() -> Arg {
    Arg::new("uplink")
        .long("uplink")
        .value_name("HOST=INTERFACE,ADDRESS/PREFIX")
        .help("also connect a host to the network of one of this machine's interfaces, by a macvlan with this address; needs root")
}

fn mtu() -> Arg {
    Arg::new("mtu").long("mtu").value_name("BYTES").value_parser(clap::value_parser!(u32)).help("MTU of the links")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let outcome = match matches.subcommand() {
        Some(("up", given)) => up(given),
        Some(("down", given)) => down(given),
        Some(("list", _)) => list(),
        Some(("exec", given)) => exec(given),
        Some(("fault", given)) => fault(given),
        Some(("guard", given)) => {
            let order = given.get_one::<String>("order").expect("clap requires the order");
            // Errors have been reported on standard output to the process that started this one.
            Ok(guard::run(order, io::stdin().lock(), io::stdout().lock()).map_or(Exit::Preflight, |()| Exit::Pass))
        }
        Some((_, given)) => {
            let order = given.get_one::<String>("order").expect("clap requires the order");
            // Errors have been reported on standard output to the process that started this one.
            Ok(holder::run(order, io::stdout().lock(), &PacketPrograms).map_or(Exit::Preflight, |()| Exit::Pass))
        }
        None => unreachable!("clap requires a subcommand"),
    };
    outcome.map_err(|error| match error.downcast::<fathom_lab::Error>() {
        Ok(error) => fathom_run::exit::lab_error(&error).into(),
        Err(error) => error,
    })
}

fn lab_name(given: &ArgMatches, otherwise: Option<&str>) -> anyhow::Result<LabName> {
    let text = given.get_one::<String>("name").map(String::as_str).or(otherwise).expect("clap requires the name");
    Ok(text.parse::<LabName>()?)
}

fn up(given: &ArgMatches) -> anyhow::Result<Exit> {
    // Signals are watched before anything is created, so that an interrupt is handled.
    let signals = signal::watch()?;
    let options = Options { device_core: hosts::device_core(), ..Options::default() };
    let (preset, mut options) = preset::chosen(given.get_one::<String>("preset").expect("it has a default"), options)?;
    let name = lab_name(given, Some(preset.name))?;
    if let Some(mtu_bytes) = given.get_one::<u32>("mtu") {
        options.mtu_bytes = *mtu_bytes;
    }
    options.has_direct_wire = given.get_flag("direct-wire");
    options.uplink = given.get_one::<String>("uplink").map(|uplink| uplink.parse()).transpose()?;
    options.device = given.get_one::<String>("device").map(|device| device.parse()).transpose()?;
    let lifetime = measurement::duration_option(given, "for", Nanos::from_secs(3600))?;
    let state = StateFolder::from_environment()?;
    holder::up(hosts::holder_program(), &LabSpec { name: &name, state: &state, preset, options: &options, lifetime })?;
    if let Some(signal) = signals.received() {
        fathom_lab::down(&state, &name)?;
        eprintln!("interrupted: lab {name} was taken down again");
        return Ok(Exit::Signalled(signal));
    }
    let lab = Lab::find(&state, &name)?;
    let mut out = io::stdout().lock();
    for host in lab.hosts() {
        let shared = host.virtual_address().map(|address| format!(" and {address}")).unwrap_or_default();
        writeln!(out, "{name} {:<8} {}{shared}", host.name(), host.address())?;
    }
    for loss in lab.missing_features() {
        eprintln!("not available: {} ({})", loss.what, loss.why);
    }
    if let Some(device) = lab.device() {
        let elsewhere = if device.device.is_process() { "any core" } else { "the sender's core" };
        let core = device.core.map_or_else(|| elsewhere.to_owned(), |core| format!("core {core}"));
        eprintln!("device: {} on {core}", device.device);
        device.unavailable.iter().for_each(|loss| eprintln!("not available: {loss}"));
    }
    if let Some(uplink) = &options.uplink {
        eprintln!("uplink: {} has {} on the network of {}", uplink.host, uplink.address, uplink.interface);
    }
    eprintln!("up for {lifetime}; take it down with: fathom lab down {name}");
    Ok(Exit::Pass)
}

fn down(given: &ArgMatches) -> anyhow::Result<Exit> {
    let state = StateFolder::from_environment()?;
    if given.get_flag("stale") {
        let undone = fathom_lab::undo_stale(&state)?;
        let names: Vec<_> = undone.iter().map(ToString::to_string).collect();
        eprintln!(
            "{}",
            if names.is_empty() {
                "nothing was left behind".to_owned()
            } else {
                format!("undone: {}", names.join(", "))
            }
        );
        return Ok(Exit::Pass);
    }
    for program in fathom_lab::down(&state, &lab_name(given, None)?)? {
        eprintln!("{program}");
    }
    Ok(Exit::Pass)
}

fn list() -> anyhow::Result<Exit> {
    let state = StateFolder::from_environment()?;
    let mut out = io::stdout().lock();
    for (name, record) in fathom_lab::list(&state)? {
        let lab = Lab::find(&state, &name)?;
        let hosts = lab.hosts().iter().map(|host| format!("{} {}", host.name(), host.address()));
        let device = record.device.as_ref().map(|device| format!("device {}", device.device));
        let uplinks = record.hosts.iter().filter_map(|host| {
            let uplink = host.interfaces.iter().find(|interface| interface.name == UPLINK)?;
            Some(format!("uplink of {} {}", host.name, uplink.address))
        });
        let parts: Vec<String> = hosts.chain(device).chain(uplinks).collect();
        writeln!(out, "{name:<16} {:<8} {}", record.preset, parts.join(", "))?;
    }
    Ok(Exit::Pass)
}

fn exec(given: &ArgMatches) -> anyhow::Result<Exit> {
    let lab_name = lab_name(given, None)?;
    let lab = Lab::find(&StateFolder::from_environment()?, &lab_name)?;
    let host = lab.host(given.get_one::<String>("host").expect("clap requires the host"))?;
    let words: Vec<&String> = given.get_many("words").expect("clap requires the command").collect();
    let mut program = Program::new(words[0]);
    program.args(&words[1..]);
    // The command decides what a signal means: it may have to clean up, and would be killed with this process.
    let signals = SignalsForChild::keep()?;
    let started = host.start(program).map_err(|error| match &error {
        fathom_lab::Error::Kernel { source, .. } if source.source.kind() == io::ErrorKind::NotFound => {
            UserError::new(Exit::Preflight, format!("there is no program `{}` on host {}", words[0], host.name()))
                .with_line("try", format!("fathom lab exec {} {} -- sh -c 'echo $PATH'", lab_name, host.name()))
                .into()
        }
        _ => anyhow::Error::from(error),
    });
    let mut started = started?;
    signals.pass_to(Pidfd::open(started.id())?);
    let status = started.wait().with_context(|| format!("cannot wait for {}", words[0]))?;
    // Returns the command's own exit code. If a signal ended the command, returns the same code as a shell.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(Exit::Code(u8::try_from(code).unwrap_or(1)))
}

fn fault(given: &ArgMatches) -> anyhow::Result<Exit> {
    let (word, given) = given.subcommand().expect("clap requires a subcommand");
    let state = StateFolder::from_environment()?;
    if !given.contains_id("name") {
        return list_faults();
    }
    let name = lab_name(given, None)?;
    let lab = Lab::find(&state, &name)?;
    let text = |id: &str| given.get_one::<String>(id).map(String::as_str).unwrap_or_default();
    let commands = match word {
        "list" => return list_planted(&state, &name),
        "add" => {
            let fault = Fault::find(text("fault"))?;
            let values =
                fault.values_of(given.get_many::<String>("values").into_iter().flatten().map(String::as_str))?;
            let place = FaultPlace { state: &state, name: &name, lab: &lab, host: text("host") };
            fault::plant(&place, fault, &values, hosts::guard_program())?
        }
        _ => fault::remove(&state, &name, &lab, text("fault"), given.get_one::<String>("host").map(String::as_str))?,
    };
    let mut out = io::stdout().lock();
    commands.iter().try_for_each(|command| writeln!(out, "{command}"))?;
    Ok(Exit::Pass)
}

fn list_faults() -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    for fault in FAULTS {
        let values: Vec<_> = fault.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(out, "{:<16} {:<66} {}", fault.name, fault.about, values.join(" "))?;
    }
    Ok(Exit::Pass)
}

fn list_planted(state: &StateFolder, name: &LabName) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    for planted in fault::planted(state, name)? {
        let values: Vec<_> = planted.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        writeln!(out, "{:<16} on {:<8} {}", planted.fault, planted.host, values.join(" "))?;
    }
    Ok(Exit::Pass)
}
