//! The two ways to the target: those of a lab with two wires, two addresses of a host, or two URLs.

use std::{net::IpAddr, path::PathBuf};

use clap::ArgMatches;
use fathom_http::url::Url;
use fathom_lab::{Device, device, preset};
use fathom_model::{
    Layer, PathPlan,
    plan::{HostReach, LabPlan},
};

use super::usage;
use crate::command::measurement::{self, NamedSides, TestHosts};
use fathom_run::{
    exit::{Exit, UserError},
    target,
};

/// The paths, the reference first.
const DIRECT: &str = "direct";
const VIA: &str = "via";

/// The paths with the hosts between which they lead.
pub(super) struct Ways {
    pub(super) ends: TestHosts,
    pub(super) paths: Vec<PathPlan>,
    /// The target of each path, if it runs no fathom.
    pub(super) urls: Option<Vec<String>>,
    /// The device of a lab.
    pub(super) device: Option<Device>,
    /// The words of a title: `direct and through nft:1000`.
    pub(super) what: String,
}

impl Ways {
    /// Gives the balancer of a lab that is built for the run as many queues as a sweep uses.
    ///
    /// # Errors
    /// If the device has no queues.
    pub(super) fn give_queues(&mut self, most: u16) -> Result<(), UserError> {
        let Some(Device::Balancer(balancer)) = &mut self.device else {
            return Err(usage("--sweep queues is of a device with queues").with_line("use", "--device balancer"));
        };
        if balancer.data_path.has_program() {
            let what = format!("--sweep queues: with path={}, a program decides before the queues", balancer.data_path);
            return Err(usage(what).with_line("use", "--device balancer"));
        }
        balancer.n_queues = balancer.n_queues.max(most);
        if let Some(lab) = &mut self.ends.lab {
            lab.device = self.device.as_ref().map(ToString::to_string);
        }
        Ok(())
    }
}

/// Returns the paths that the command line means.
///
/// # Errors
/// If it names none, or more than one kind of them.
pub(super) fn ways(matches: &ArgMatches, layer: Option<Layer>) -> anyhow::Result<Ways> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let device = text("device");
    match (text(DIRECT).zip(text(VIA)), measurement::lab_option(matches)) {
        (Some(_), Some(_)) => Err(usage("--direct and --via name a target outside, and a lab has its own")
            .with_line("use", "either --direct and --via, or --device")
            .into()),
        (Some(places), None) if is_url(places.0) || is_url(places.1) => urls(places, layer, matches),
        (Some(places), None) => addresses(places, matches),
        (None, Some(name)) => Ok(in_lab(name, device)?),
        (None, None) if matches.contains_id("hosts") => {
            Err(usage("--hosts names the hosts, and not the two paths between them")
                .with_line("use", "--hosts FILE --direct ADDRESS --via ADDRESS: two addresses of the responding host")
                .into())
        }
        (None, None) => Err(no_paths().into()),
    }
}

fn no_paths() -> UserError {
    usage("two paths are needed: one direct, one through a device")
        .with_line("use", "--device DEVICE, which builds a lab with both")
        .with_line("", format!("DEVICE is one of {}", device::forms()))
        .with_line("or", "--direct ADDRESS --via ADDRESS --key KEY: two addresses of a host that runs `fathom serve`")
        .with_line("", "fathom path http --direct URL --via URL")
}

/// The two ways of a lab: one directly, one through its device.
fn in_lab(name: &str, device: Option<&str>) -> Result<Ways, UserError> {
    let (mut ends, known) = measurement::pair_through_device(name, device)?;
    let translates = known.as_ref().is_some_and(Device::translates);
    let Some(through) = ends.via.clone() else {
        return Err(no_paths().with_line("why", format!("lab `{name}` has no device")));
    };
    let (from, to) = (ends.from.clone(), ends.to.clone());
    let at = |places: &[(&String, &str)]| places.iter().map(|(host, at)| ((*host).clone(), (*at).to_owned())).collect();
    let translated = if translates { vec![to.clone()] } else { Vec::new() };
    let (directly, by_device) = if to == preset::FIRST_TARGET {
        // A target has its own address beside the virtual one, by which it is known. It listens there, unless the device translates addresses.
        let own = [(&from, preset::THROUGH), (&to, preset::THROUGH)];
        (at(&[(&from, preset::DIRECT), own[1]]), at(if translates { &own } else { &own[..1] }))
    } else {
        ends.lab = ends.lab.map(|lab| LabPlan { direct_wire: true, ..lab });
        let both = |interface| at(&[(&from, interface), (&to, interface)]);
        (both(preset::DIRECT), both(preset::THROUGH))
    };
    let paths = vec![
        PathPlan { name: DIRECT.to_owned(), at: directly, via: None, translated: Vec::new() },
        PathPlan { name: VIA.to_owned(), at: by_device, via: Some(through), translated },
    ];
    let shown = device.map_or_else(|| format!("the device of lab {name}"), str::to_owned);
    Ok(Ways { ends, paths, urls: None, device: known, what: format!("direct and through {shown}") })
}

fn is_url(place: &str) -> bool {
    place.contains("://")
}

fn urls((direct, via): (&str, &str), layer: Option<Layer>, matches: &ArgMatches) -> anyhow::Result<Ways> {
    if !matches!(layer, Some(Layer::Http | Layer::App)) {
        let other = layer.map_or("path", Layer::command);
        return Err(usage(format!("a URL is a target of http and app, and not of {other}"))
            .with_line("use", "fathom path http --direct URL --via URL")
            .into());
    }
    if let Some(place) = [direct, via].into_iter().find(|place| !is_url(place)) {
        return Err(usage(format!("`{place}` is no URL, and the other path has one"))
            .with_line("use", "--direct URL --via URL")
            .into());
    }
    if leads_the_same_way(direct, via) {
        return Err(usage(format!("`direct` and `via` are the same path: {direct} and {via} name one address"))
            .with_line("fix", "another address or URL for one of them")
            .into());
    }
    let ends = measurement::initiators(matches)?;
    let path = |name: &str| PathPlan { name: name.to_owned(), at: [].into(), via: None, translated: Vec::new() };
    Ok(Ways {
        ends: through(ends, matches)?,
        paths: vec![path(DIRECT), path(VIA)],
        urls: Some([direct, via].map(str::to_owned).to_vec()),
        device: None,
        what: format!("{direct} and {via}"),
    })
}

/// Returns true if two URLs differ only in how they write the same address. A server may tell two names apart, but not a name from an address that it
/// was found by.
fn leads_the_same_way(one: &str, other: &str) -> bool {
    let (Ok(one), Ok(other)) = (one.parse::<Url>(), other.parse::<Url>()) else { return false };
    let address = |url: &Url| target::resolve(&url.host).ok().and_then(|all| all.first().map(IpAddr::to_canonical));
    let is_address = |url: &Url| url.host.parse::<IpAddr>().is_ok() || url.host == "localhost";
    let is_alike = (one.scheme, one.port, &one.target) == (other.scheme, other.port, &other.target);
    is_alike
        && (one.host == other.host || is_address(&one) || is_address(&other))
        && address(&one).is_some_and(|address_of_one| Some(address_of_one) == address(&other))
}

/// Two addresses of the responding host. The first one is also that of its agent, unless an inventory says how it is reached.
fn addresses((direct, via): (&str, &str), matches: &ArgMatches) -> anyhow::Result<Ways> {
    let ends = match measurement::hosts_of_inventory(matches, NamedSides::Both)? {
        Some(ends) => ends,
        None => measurement::hosts_at_target(direct, matches)?,
    };
    if !ends.groups.is_empty() {
        return Err(usage("two paths are compared between two hosts").with_line("use", "--from HOST --to HOST").into());
    }
    let ends = through(ends, matches)?;
    let (to, device) = (ends.to.clone(), ends.via.clone());
    let path = |name: &str, place: &str, via: Option<String>| {
        let address = address_of(place)?;
        Ok::<_, UserError>(PathPlan {
            name: name.to_owned(),
            at: [(to.clone(), address.to_string())].into(),
            via,
            translated: Vec::new(),
        })
    };
    let paths = vec![path(DIRECT, direct, None)?, path(VIA, via, device)?];
    Ok(Ways { ends, paths, urls: None, device: None, what: format!("{direct} and {via}") })
}

/// Returns the address of a place: of an address or a name, with or without a port.
fn address_of(place: &str) -> Result<IpAddr, UserError> {
    let host = fathom_model::host_port::split_host_port(place).map_or(place, |(host, _)| host);
    target::resolve(host)?.into_iter().next().ok_or_else(|| {
        UserError::new(Exit::Preflight, format!("`{place}` has no address"))
            .with_line("use", "an address, or a name that is known here")
    })
}

/// Adds the host of the inventory that is the device.
fn through(mut ends: TestHosts, matches: &ArgMatches) -> Result<TestHosts, UserError> {
    let Some(name) = matches.get_one::<String>("device-host") else { return Ok(ends) };
    let path = matches.get_one::<PathBuf>("hosts").expect("clap requires the file");
    let file = fathom_run::inventory::read(path)?;
    if !file.inventory.hosts.contains_key(name) {
        let known: Vec<&str> = file.inventory.hosts.keys().map(String::as_str).collect();
        return Err(usage(format!("--device-host {name}: there is no such host in {}", path.display()))
            .with_line("hosts", known.join(", ")));
    }
    if ends.hosts.iter().any(|(host, _)| host == name) {
        return Err(
            usage(format!("--device-host {name}: it is an end of the paths")).with_line("use", "the host between them")
        );
    }
    let mut reach: HostReach = file.reach(name)?;
    measurement::complete_hosts(std::iter::once(&mut reach), matches)?;
    ends.hosts.push((name.clone(), reach));
    ends.via = Some(name.clone());
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_write_one_address_in_two_ways_are_the_same_path() {
        for (one, other, is_same) in [
            ("http://127.0.0.1/", "http://127.0.0.1:80", true),
            ("http://127.0.0.1/", "http://[::ffff:127.0.0.1]/", true),
            ("http://127.0.0.1:8080/", "http://127.0.0.1/", false),
            ("http://127.0.0.1/", "http://127.0.0.1/behind", false),
            ("http://127.0.0.1/", "https://127.0.0.1:80/", false),
            ("http://127.0.0.1/", "http://127.0.0.2/", false),
        ] {
            assert_eq!(leads_the_same_way(one, other), is_same, "{one} {other}");
        }
    }
}
