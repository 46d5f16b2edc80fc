//! The reference balancer as a device: its text form, and the command line of its process.

use std::{fmt, net::IpAddr};

use fathom_balancer::{
    Defects,
    device::{DataPath, DeviceSettings, ForwardMode},
    flows::FlowLookup,
};

/// The reference balancer before the targets of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerDevice {
    /// The number of queues, each with a thread.
    pub n_queues: u16,
    /// The number of balancers behind it, which then decide in its place; 0 if it stands alone.
    pub n_behind: u16,
    /// How packets reach their target.
    pub mode: ForwardMode,
    /// What decides about packets.
    pub data_path: DataPath,
    /// How it looks up flow rules.
    pub lookup: FlowLookup,
    /// What it does wrong on purpose.
    pub defects: Defects,
}

/// The most balancers of a second tier: enough to see that fragments find the one that has theirs.
const N_BEHIND_MAX: u16 = 8;

/// Which balancers a command line runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The one that sends everything on to the balancers behind it.
    First,
    /// One that decides among targets.
    Deciding,
}

/// The names of all values, for help.
pub(super) const VALUES: &str =
    "[:queues=2,second-tier=2,mode=dsr|dnat,path=nfqueue|xdp|tc,lookup=indexed|linear,defect=DEFECT,defect=…]";

impl BalancerDevice {
    /// Reads `queues=2,defect=mis-hash=1/100`.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, String> {
        let (mode, data_path, lookup, defects) = Default::default();
        let mut found = Self { n_queues: 1, n_behind: 0, mode, data_path, lookup, defects };
        let number = |name: &str, value: &str, most: u16| {
            let read = value.trim().parse().ok().filter(|n| (1..=most).contains(n));
            read.ok_or_else(|| format!("{name}: `{value}` is not a number from 1 to {most}"))
        };
        let mut defects = Vec::new();
        for part in text.into_iter().flat_map(|text| text.split(',')) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not written as NAME=VALUE"))?;
            match name.trim() {
                "queues" => found.n_queues = number("queues", value, DeviceSettings::N_QUEUES_MAX)?,
                "second-tier" => found.n_behind = number("second-tier", value, N_BEHIND_MAX)?,
                "mode" => found.mode = value.trim().parse().map_err(|error| format!("mode: {error}"))?,
                "path" => found.data_path = value.trim().parse().map_err(|error| format!("path: {error}"))?,
                "lookup" => found.lookup = value.trim().parse().map_err(|error| format!("lookup: {error}"))?,
                "defect" => defects.push(value.trim()),
                other => return Err(format!("it has no value `{other}`")),
            }
        }
        found.defects = defects.join(",").parse().map_err(|error| format!("{error}"))?;
        if found.defects.wrong_source && found.mode != ForwardMode::Dnat {
            return Err("defect wrong-source needs mode=dnat: in mode dsr no answer passes the balancer".to_owned());
        }
        let path = found.data_path;
        if path.has_program() && found.mode != ForwardMode::Dsr {
            return Err(format!("path={path} needs mode=dsr: its program does not translate addresses"));
        }
        if found.n_behind > 0 && (path.has_program() || found.mode != ForwardMode::Dsr) {
            return Err("second-tier needs mode=dsr and path=nfqueue: packets are routed on as they are".to_owned());
        }
        Ok(found)
    }

    /// The names of the balancers behind it.
    pub(crate) fn names_behind(&self) -> Vec<String> {
        (1..=self.n_behind).map(|number| format!("lb{number}")).collect()
    }

    /// Returns whether a program in the driver of an interface decides about packets.
    pub(super) fn is_xdp(&self) -> bool {
        self.data_path == DataPath::Xdp
    }

    /// What its program cannot do, as a sentence.
    pub(super) fn left_by_program(&self) -> Option<String> {
        let defects = self.defects.beside_table().filter(|_| self.data_path.has_program())?;
        let path = self.data_path.to_string().to_uppercase();
        Some(format!("{path} on eth0 of the balancer leaves everything to its queues, because of defect {defects}"))
    }

    /// Returns whether the answers of targets go back through it.
    pub(super) fn translates(&self) -> bool {
        self.mode == ForwardMode::Dnat
    }

    /// The words of the command line that runs it before these targets or balancers: name and address of each.
    pub(super) fn words(&self, stage: Stage, vip: Option<IpAddr>, hosts: &[(String, IpAddr)]) -> Vec<String> {
        let mut words: Vec<String> = ["balancer", "run", "--mode"].map(str::to_owned).to_vec();
        words.push(self.mode.to_string());
        words.extend(["--queues".to_owned(), format!("0-{}", self.n_queues - 1)]);
        if self.data_path.has_program() {
            // The interface to the client.
            words.extend(["--data-path", &self.data_path.to_string(), "--interface", "eth0"].map(str::to_owned));
        }
        words.extend(vip.into_iter().flat_map(|address| ["--vip".to_owned(), address.to_string()]));
        let option = if stage == Stage::First { "--tier" } else { "--target" };
        words.extend(hosts.iter().flat_map(|(name, address)| [option.to_owned(), format!("{name}={address}")]));
        if stage == Stage::First {
            return words;
        }
        words.extend(["--lookup".to_owned(), self.lookup.to_string()]);
        let defects = self.defects.to_string();
        if !defects.is_empty() {
            words.extend(["--defect".to_owned(), defects]);
        }
        words
    }
}

impl fmt::Display for BalancerDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queues={},mode={}", self.n_queues, self.mode)?;
        if self.n_behind > 0 {
            write!(f, ",second-tier={}", self.n_behind)?;
        }
        if self.lookup != FlowLookup::default() {
            write!(f, ",lookup={}", self.lookup)?;
        }
        if self.data_path.has_program() {
            write!(f, ",path={}", self.data_path)?;
        }
        let defects = self.defects.to_string();
        defects.split(',').filter(|one| !one.is_empty()).try_for_each(|one| write!(f, ",defect={one}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_program_leaves_to_the_queues_is_told() {
        let left = |text| BalancerDevice::parse(Some(text)).unwrap().left_by_program();
        assert_eq!(
            (left("path=xdp"), left("defect=drop=1/2"), left("path=xdp,defect=tiny-table=7")),
            (None, None, None)
        );
        let told = left("path=xdp,defect=mis-hash=1/2").unwrap();
        assert!(
            told.starts_with("XDP on eth0")
                && told.ends_with("leaves everything to its queues, because of defect mis-hash=1/2"),
            "{told}"
        );
        assert!(left("path=tc,defect=mis-hash=1/2").is_some_and(|told| told.starts_with("TC on eth0")));
    }
}
