//! Whether the address of a host on the path under test is its own: the others send their load there.
//!
//! An inventory or a plan says at which address a host is. A wrong one would make the other hosts load a machine that nobody agreed to.

use std::net::IpAddr;

use fathom_model::plan::HostReach;

use crate::{
    allow::{self, AllowList},
    exit::{Exit, UserError},
};

/// The most addresses of a host in an error: a node of a cluster has hundreds.
const SHOWN_MAX: usize = 8;

/// Returns whether the addresses of a host come from its inventory or plan. Those of a lab are the lab's, and this machine finds its own.
const fn is_told(reach: &HostReach) -> bool {
    !matches!(reach, HostReach::Lab(_) | HostReach::LabUp(..) | HostReach::This | HostReach::Inventory(_))
}

/// An address at which the others will load a host.
#[derive(Clone, Copy)]
pub(super) struct ToldAddress<'a> {
    pub(super) name: &'a str,
    pub(super) reach: &'a HostReach,
    pub(super) address: IpAddr,
    /// The address at which its agent answered, if the way to it shows that.
    pub(super) reached_at: Option<IpAddr>,
    /// The addresses of the interfaces of the host.
    pub(super) own: &'a [IpAddr],
}

impl ToldAddress<'_> {
    /// Returns whether the host takes packets to the address, as far as this is known: one of its interfaces has it, or its agent answered
    /// there (which an address translator may do for it), or it is loopback.
    fn is_own(&self) -> bool {
        let address = self.address.to_canonical();
        address.is_loopback() || self.own.contains(&address) || self.reached_at == Some(address)
    }

    /// Checks that the address is the host's own, or one that the user allows to load.
    ///
    /// # Errors
    /// With the addresses that the host has.
    pub(super) fn check(self, allowed: &AllowList) -> Result<(), UserError> {
        let Self { name, reach, address, own, .. } = self;
        if !is_told(reach) || self.is_own() {
            return Ok(());
        }
        let is_single = allow::check_single_host(name, &[address]).is_ok();
        if is_single && allowed.covers((address, address)) {
            return Ok(());
        }
        let same_family = own.iter().filter(|one| one.is_ipv4() == address.is_ipv4() && !one.is_loopback());
        let shown: Vec<String> = same_family.map(IpAddr::to_string).collect();
        let more = if shown.len() > SHOWN_MAX { ", …" } else { "" };
        let known = match shown.as_slice() {
            [] => "it has none of this IP version".to_owned(),
            [only] => format!("its address is {only}"),
            several => format!("its addresses are {}{more}", several[..several.len().min(SHOWN_MAX)].join(", ")),
        };
        let what = format!("host `{name}`: {address} is not an address of this host; {known}");
        let user_error = UserError::new(Exit::Preflight, what)
            .with_line("why", "the other hosts would load another machine")
            .with_line("fix", shown.first().map_or("data = \"…\"".to_owned(), |own| format!("data = \"{own}\"")));
        if is_single {
            let allow = format!("fathom allow add {address}        # if it leads to this host by address translation");
            return Err(user_error.with_line("or", allow));
        }
        Err(user_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reach: &HostReach, address: &str, reached_at: Option<&str>, own: &[&str]) -> Option<String> {
        let parsed = |text: &str| text.parse::<IpAddr>().unwrap();
        let (address, own) = (parsed(address), own.iter().map(|text| parsed(text)).collect::<Vec<_>>());
        let told = ToldAddress { name: "x", reach, address, reached_at: reached_at.map(parsed), own: &own };
        told.check(&AllowList::default()).err().map(|error| error.to_string())
    }

    #[test]
    fn an_address_of_another_machine_is_refused_with_those_that_the_host_has() {
        let here = HostReach::At(IpAddr::from([10, 0, 0, 3]));
        let own = ["127.0.0.1", "10.0.0.1", "192.0.2.1", "fd00::1"];
        let refused = error(&here, "10.0.0.3", None, &own).unwrap();
        let expected = "host `x`: 10.0.0.3 is not an address of this host; its addresses are 10.0.0.1, 192.0.2.1\n";
        assert!(refused.starts_with(expected), "{refused}");
        assert!(refused.contains("data = \"10.0.0.1\"") && refused.contains("fathom allow add 10.0.0.3"), "{refused}");
        assert!(error(&here, "fd00::2", None, &own).unwrap().contains("its address is fd00::1\n"));
        for group in ["224.0.0.1", "0.0.0.0", "255.255.255.255", "ff02::1"] {
            assert!(!error(&here, group, None, &own).unwrap().contains("allow add"), "{group}");
        }
        assert!(error(&here, "10.0.0.3", None, &[]).is_some(), "the kernel told no addresses");
    }

    #[test]
    fn an_address_of_the_host_and_one_at_which_its_agent_answered_pass() {
        let served = HostReach::Tls { address: "203.0.113.1:7700".to_owned(), key: None, data: None };
        let own = ["10.0.0.1", "fd00::1"];
        for address in ["10.0.0.1", "fd00::1", "127.0.0.5", "::1"] {
            assert_eq!(error(&served, address, None, &own), None, "{address}");
        }
        assert_eq!(error(&served, "203.0.113.1", Some("203.0.113.1"), &own), None, "behind address translation");
        assert!(error(&served, "203.0.113.2", Some("203.0.113.1"), &own).is_some());
        let lab = HostReach::Lab("b".to_owned());
        assert_eq!(error(&lab, "198.18.8.1", None, &own), None, "the lab has made it");
    }
}
