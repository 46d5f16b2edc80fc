//! Labs: building them, finding those that are up, ending them.

use crate::{
    DeviceRecord, Entry, Error, Host, Interface, LabName, Options, Preset, Result, StateFolder, StoredJournal,
    device::{self, FittedDevice, NoPrograms, ProgramLoader},
    holder,
    journal::{END_PATIENCE, IdentityText, journal_of, journals},
};
use fathom_sys::{
    netlink::namespace::{Namespaces, NetNs, is_first_user_namespace, open_user_namespace},
    process::{ProcessIdentity, may_administer_network},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
    process::Command,
};

/// Hosts joined by wires, held by the descriptors in this value and perhaps by a holder too.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Host>,
    differences: Vec<SettingDifference>,
    standing: LabState,
    /// The programs of its device, for as long as this process holds it.
    fitting: Option<FittedDevice>,
}

/// With which rights the hosts of a lab exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabState {
    /// Those of root: everything works.
    Root,
    /// Those of root in a container, which the machine does not take for root.
    Contained,
    /// Those of a user namespace made for the lab.
    Rootless,
}

impl LabState {
    /// What this process can give to a lab.
    #[must_use]
    pub fn of_this_process() -> Self {
        match (may_administer_network(), is_first_user_namespace()) {
            (true, true) => Self::Root,
            (true, false) => Self::Contained,
            (false, _) => Self::Rootless,
        }
    }
}

/// Something that does not work in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFeature {
    /// What is lost.
    pub what: &'static str,
    /// Why, and what takes its place.
    pub why: &'static str,
}

/// A setting that a fresh network namespace has otherwise than this machine: reported, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingDifference {
    /// The path below `/proc/sys/net`.
    pub setting: String,
    /// What this machine has.
    pub machine: String,
    /// What the hosts of the lab have.
    pub lab: String,
}

/// A lab as its holder describes it to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabRecord {
    /// The preset that it was built from.
    pub preset: String,
    /// The process that holds it.
    #[serde(with = "IdentityText")]
    pub holder: ProcessIdentity,
    /// With which rights its hosts exist.
    pub standing: LabState,
    /// Its hosts, in the order of the preset.
    pub hosts: Vec<HostRecord>,
    differences: Vec<SettingDifference>,
    /// The device between its hosts.
    #[serde(default)]
    pub device: Option<DeviceRecord>,
}

/// A host as its holder describes it to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// The name within its lab.
    pub name: LabName,
    /// Its devices besides loopback.
    pub interfaces: Vec<Interface>,
    /// The descriptor of the holder that keeps the namespace: `/proc/PID/fd/N` can be entered by any tool.
    pub descriptor: i32,
}

/// What is lost without root; a container loses all but the last.
const LOSSES: &[MissingFeature] = &[
    MissingFeature {
        what: "XDP programs and AF_XDP",
        why: "the kernel takes programs only from CAP_BPF outside a user namespace; frames are counted by AF_PACKET",
    },
    MissingFeature {
        what: "settings of the whole machine",
        why: "net.core.rmem_max and the like belong to root, so socket buffers keep their limits",
    },
    MissingFeature {
        what: "work inside a host from this process",
        why: "a process with threads cannot enter a user namespace; a child is started for it",
    },
];

impl Lab {
    /// Builds a lab that vanishes with this value, and with this process even after a SIGKILL.
    ///
    /// Without root a child in a user namespace builds it, because a process with threads can enter none: `holder_program` is this program
    /// in the role that calls [`holder::run`]. As root it is not started.
    ///
    /// # Errors
    /// When an option is out of range or the kernel refuses.
    pub fn build(preset: &Preset, options: &Options, holder_program: Command) -> Result<Self> {
        Self::build_with(preset, options, holder_program, &NoPrograms)
    }

    /// Builds a lab like [`Self::build`], whose device may need a program.
    ///
    /// # Errors
    /// As of [`Self::build`].
    pub fn build_with(
        preset: &Preset,
        options: &Options,
        holder_program: Command,
        programs: &dyn ProgramLoader,
    ) -> Result<Self> {
        options.validate()?;
        preset.device(options)?;
        let standing = LabState::of_this_process();
        if standing != LabState::Rootless {
            return Self::build_here(preset, options, standing, programs);
        }
        let builder = holder::start_bound(holder_program, preset, options)?;
        // From here on the descriptors of this process hold the lab, and the builder may go.
        Self::attach(&builder.record)
    }

    pub(crate) fn build_here(
        preset: &Preset,
        options: &Options,
        standing: LabState,
        programs: &dyn ProgramLoader,
    ) -> Result<Self> {
        let machine = settings();
        let hosts = preset.build(options)?;
        let device = preset.device(options)?;
        let fitting = device.map(|device| device::fit(&hosts, device, options, programs)).transpose()?;
        let first = hosts.first().expect("a preset has hosts");
        let differences = differences(machine, first.enter_with(settings)?);
        Ok(Self { hosts, differences, standing, fitting })
    }

    /// Opens a lab that is up.
    ///
    /// # Errors
    /// [`Error::NotUp`] when none of that name lives.
    pub fn find(state: &StateFolder, name: &LabName) -> Result<Self> {
        let (_, record) = standing(state, name)?;
        Self::attach(&record).map_err(|error| match error {
            Error::Kernel { .. } if !record.holder.is_alive() => Error::NotUp(name.as_str().to_owned()),
            other => other,
        })
    }

    /// Takes hold of the namespaces that another process holds.
    fn attach(record: &LabRecord) -> Result<Self> {
        let pid = record.holder.pid;
        let hosts = record.hosts.iter().map(|host| attach_host(record, host)).collect::<Result<_>>()?;
        // Checked last: what was opened above may belong to a successor of the holder otherwise.
        if !record.holder.is_alive() {
            return Err(Error::Holder { message: format!("process {pid} has ended"), hint: None });
        }
        let fitting = record.device.clone().map(|record| FittedDevice { record, attached: Vec::new() });
        Ok(Self { hosts, differences: record.differences.clone(), standing: record.standing, fitting })
    }

    /// What others need to open this lab, which the calling process holds.
    pub(crate) fn record(&self, preset: &Preset) -> Result<LabRecord> {
        let host = |host: &Host| HostRecord {
            name: host.name.clone(),
            interfaces: host.interfaces.clone(),
            descriptor: host.namespaces.net.as_fd().as_raw_fd(),
        };
        Ok(LabRecord {
            preset: preset.name.to_owned(),
            holder: ProcessIdentity::current().map_err(Error::kernel("identify this process"))?,
            standing: self.standing,
            hosts: self.hosts.iter().map(host).collect(),
            differences: self.differences.clone(),
            device: self.device().cloned(),
        })
    }

    /// All hosts, in the order of the preset.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host of that name.
    ///
    /// # Errors
    /// [`Error::UnknownHost`], whose hint names those that there are.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.iter().find(|host| host.name.as_str() == name).ok_or_else(|| Error::UnknownHost {
            host: name.to_owned(),
            known: self.hosts.iter().map(|host| host.name.to_string()).collect(),
        })
    }

    /// The device between its hosts, if there is one.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceRecord> {
        self.fitting.as_ref().map(|fitting| &fitting.record)
    }

    /// With which rights its hosts exist.
    #[must_use]
    pub fn standing(&self) -> LabState {
        self.standing
    }

    /// What does not work in it.
    #[must_use]
    pub fn losses(&self) -> &'static [MissingFeature] {
        match self.standing {
            LabState::Root => &[],
            LabState::Contained => &LOSSES[..LOSSES.len() - 1],
            LabState::Rootless => LOSSES,
        }
    }

    /// The settings that its hosts have otherwise than this machine.
    #[must_use]
    pub fn differences(&self) -> &[SettingDifference] {
        &self.differences
    }
}

fn attach_host(record: &LabRecord, host: &HostRecord) -> Result<Host> {
    let pid = record.holder.pid;
    let attempt = || Error::kernel(format!("open host {} of process {pid}", host.name));
    let user = match record.standing {
        LabState::Root | LabState::Contained => None,
        LabState::Rootless => Some(open_user_namespace(pid).map_err(attempt())?),
    };
    let net = NetNs::open(format!("/proc/{pid}/fd/{}", host.descriptor)).map_err(attempt())?;
    let (name, interfaces) = (host.name.clone(), host.interfaces.clone());
    Ok(Host { name, interfaces, namespaces: Namespaces { user, net } })
}

/// The settings by which a fresh namespace can differ and which change what is measured.
const SETTINGS: &[&str] = &[
    "core/default_qdisc",
    "core/optmem_max",
    "core/rmem_default",
    "core/rmem_max",
    "core/somaxconn",
    "core/wmem_default",
    "core/wmem_max",
    "ipv4/ip_local_port_range",
    "ipv4/tcp_congestion_control",
    "ipv4/tcp_ecn",
    "ipv4/tcp_mtu_probing",
    "ipv4/tcp_notsent_lowat",
    "ipv4/tcp_rmem",
    "ipv4/tcp_slow_start_after_idle",
    "ipv4/tcp_timestamps",
    "ipv4/tcp_tw_reuse",
    "ipv4/tcp_wmem",
];

/// The values that the namespace of the calling thread has.
fn settings() -> Vec<Option<String>> {
    let read = |name: &&str| fs::read_to_string(format!("/proc/sys/net/{name}")).ok();
    SETTINGS.iter().map(|name| read(name).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// Where both have the setting: one that a namespace lacks is the machine's alone and holds for the lab too.
fn differences(machine: Vec<Option<String>>, lab: Vec<Option<String>>) -> Vec<SettingDifference> {
    let pairs = SETTINGS.iter().zip(machine.into_iter().zip(lab));
    pairs
        .filter_map(|(setting, values)| match values {
            (Some(machine), Some(lab)) if machine != lab => {
                Some(SettingDifference { setting: (*setting).to_owned(), machine, lab })
            }
            _ => None,
        })
        .collect()
}

/// The name of the run whose journal stands for a lab that is up.
pub(crate) const RUN_PREFIX: &str = "lab-";

fn lab_in(journal: &StoredJournal) -> Option<(LabName, LabRecord)> {
    let name = journal.run().as_str().strip_prefix(RUN_PREFIX)?.parse().ok()?;
    let lab = journal.entries().iter().find_map(|entry| match entry {
        Entry::Lab(record) => Some(record.clone()),
        _ => None,
    })?;
    Some((name, lab))
}

/// The labs that are up, by name.
///
/// # Errors
/// [`Error::CorruptJournal`] for the first journal that cannot be understood.
pub fn list(state: &StateFolder) -> Result<Vec<(LabName, LabRecord)>> {
    let all: Vec<_> = journals(state)?.into_iter().collect::<Result<_>>()?;
    Ok(all.iter().filter(|journal| !journal.is_stale()).filter_map(lab_in).collect())
}

/// Ends a lab that is up, with everything that its holder wrote down; what a killed holder left is undone.
///
/// # Errors
/// [`Error::NotUp`] when there is none of that name.
pub fn down(state: &StateFolder, name: &LabName) -> Result<()> {
    let run = holder::run_name(name)?;
    if let Some(left) = journal_of(state, &run)?.filter(StoredJournal::is_stale) {
        return left.undo();
    }
    let (journal, record) = standing(state, name)?;
    record
        .holder
        .end(END_PATIENCE)
        .map_err(Error::kernel(format!("end the holder of lab {name}, process {}", record.holder.pid)))?;
    // The holder has undone its journal, unless it had to be killed. What is there now may be a successor's.
    match journal.reread() {
        Some(left) => left.undo(),
        None => Ok(()),
    }
}

/// The journal and the record of a lab that is up.
fn standing(state: &StateFolder, name: &LabName) -> Result<(StoredJournal, LabRecord)> {
    let not_up = || Error::NotUp(name.as_str().to_owned());
    let journal = journal_of(state, &holder::run_name(name)?)?.filter(|journal| !journal.is_stale());
    let journal = journal.ok_or_else(not_up)?;
    let (_, record) = lab_in(&journal).ok_or_else(not_up)?;
    Ok((journal, record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_differs_only_where_both_have_it() {
        let values = |given: [Option<&str>; 3]| given.map(|value| value.map(str::to_owned)).to_vec();
        let found =
            differences(values([Some("fq"), Some("20480"), Some("1")]), values([None, Some("20480"), Some("2")]));
        assert_eq!(
            found,
            [SettingDifference { setting: SETTINGS[2].to_owned(), machine: "1".to_owned(), lab: "2".to_owned() }]
        );
    }
}
