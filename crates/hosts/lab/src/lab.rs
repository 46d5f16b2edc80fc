//! A lab: hosts connected by wires, held by this process.

use crate::{
    DeviceRecord, Error, Host, LabName, Options, Preset, Result,
    bound_holder::BoundHolder,
    device::{FittedDevice, ProgramLoader},
    record::{HostRecord, LOSSES, LabRecord, LabState, MissingFeature, SettingDifference},
};
use fathom_sys::{
    netlink::namespace::{Namespaces, NetNs, open_user_namespace},
    process::{ProcessIdentity, confinement::Confinement},
};
use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
};

/// Hosts connected by wires, held by the descriptors in this value and possibly by a holder too.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Host>,
    differences: Vec<SettingDifference>,
    standing: LabState,
    /// The process that holds it, if that is another one.
    holder: Option<ProcessIdentity>,
    /// The programs of its device, held by this process.
    fitting: Option<FittedDevice>,
    #[expect(
        dead_code,
        reason = "it runs the threads and programs of the device in a lab without root, until this is dropped"
    )]
    builder: Option<BoundHolder>,
}

impl Lab {
    pub(crate) fn build_here(
        preset: &Preset,
        options: &Options,
        standing: LabState,
        programs: &dyn ProgramLoader,
    ) -> Result<Self> {
        let machine = settings();
        if let (Some(uplink), LabState::Rootless) = (&options.uplink, standing) {
            return Err(uplink.needs_root());
        }
        let mut hosts = preset.build(options)?;
        let device = preset.device(options)?;
        let fitting = device.map(|device| preset.fit(&hosts, device, options, programs)).transpose()?;
        options.uplink.iter().try_for_each(|uplink| uplink.join(&mut hosts))?;
        let first = hosts.first().expect("a preset has hosts");
        let differences = differences(machine, first.enter_with(settings)?);
        Ok(Self { hosts, differences, standing, holder: None, fitting, builder: None })
    }

    /// Opens the namespaces held by another process.
    pub(crate) fn attach(record: &LabRecord) -> Result<Self> {
        let pid = record.holder.pid;
        let hosts = record.hosts.iter().map(|host| attach_host(record, host)).collect::<Result<_>>()?;
        // Checked last: otherwise the namespaces opened above may belong to a later process with the holder's pid.
        if !record.holder.is_alive() {
            return Err(Error::Holder { message: format!("process {pid} has ended"), hint: None });
        }
        let fitting = record.device.clone().map(|record| FittedDevice { record, attached: Vec::new() });
        let (differences, standing) = (record.differences.clone(), record.standing);
        Ok(Self { hosts, differences, standing, holder: Some(record.holder), fitting, builder: None })
    }

    /// Keeps the process that built it for as long as this value, since the threads and programs of its device are in there.
    pub(crate) fn keep(self, builder: BoundHolder) -> Self {
        Self { builder: Some(builder).filter(|_| self.fitting.is_some()), ..self }
    }

    /// The process that holds the lab.
    pub(crate) fn holder(&self) -> Result<ProcessIdentity> {
        self.holder.map_or_else(ProcessIdentity::current, Ok).map_err(Error::kernel("identify this process"))
    }

    /// Applies to each host what limits the programs that are started on it.
    pub(crate) fn confine(&mut self, of: impl Fn(&LabName) -> Confinement) {
        for host in &mut self.hosts {
            host.namespaces.confinement = of(&host.name);
        }
    }

    /// The information that others need to open this lab, which the calling process holds.
    pub(crate) fn record(&self, preset: &Preset) -> Result<LabRecord> {
        let host = |host: &Host| HostRecord {
            name: host.name.clone(),
            interfaces: host.interfaces.clone(),
            virtual_address: host.virtual_address,
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

    /// Returns the host with this name.
    ///
    /// # Errors
    /// [`Error::UnknownHost`], whose hint lists the existing hosts.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.iter().find(|host| host.name.as_str() == name).ok_or_else(|| Error::UnknownHost {
            host: name.to_owned(),
            known: self.hosts.iter().map(|host| host.name.to_string()).collect(),
        })
    }

    /// The device between its hosts, if it has one.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceRecord> {
        self.fitting.as_ref().map(|fitting| &fitting.record)
    }

    /// The privileges of its hosts.
    #[must_use]
    pub fn standing(&self) -> LabState {
        self.standing
    }

    /// The features that do not work in it.
    #[must_use]
    pub fn missing_features(&self) -> &'static [MissingFeature] {
        match self.standing {
            LabState::Root => &[],
            LabState::Contained => &LOSSES[..LOSSES.len() - 1],
            LabState::Rootless => LOSSES,
        }
    }

    /// The settings that differ between its hosts and this machine.
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
    let (name, interfaces, virtual_address) = (host.name.clone(), host.interfaces.clone(), host.virtual_address);
    Ok(Host {
        name,
        interfaces,
        virtual_address,
        namespaces: Namespaces { user, net, confinement: Confinement::default() },
    })
}

/// The settings that may differ in a new namespace and that affect results.
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

/// The values in the namespace of the calling thread.
fn settings() -> Vec<Option<String>> {
    let read = |name: &&str| fs::read_to_string(format!("/proc/sys/net/{name}")).ok();
    SETTINGS.iter().map(|name| read(name).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// Compares settings that exist in both: a setting missing in a namespace is global to the machine and also applies to the lab.
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
