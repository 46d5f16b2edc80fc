//! The interfaces of the default routes (proc(5): `/proc/net/route`; `ipv6_route` has the same in other columns, net/ipv6/route.c).

use std::{collections::BTreeMap, path::Path};

use fathom_model::Environment;

use super::content;

/// The fact of an interface that has the default route of `ipv4`, of `ipv6`, or both.
pub const DEFAULT_ROUTE: &str = "default_route";

/// The flag of a route that is in use, and of one that refuses (`RTF_UP` and `RTF_REJECT`, include/uapi/linux/route.h).
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;
/// A whole network of zeros, as `ipv6_route` writes it.
const ANY_V6: &str = "00000000000000000000000000000000";

pub(super) fn note(root: &Path, facts: &mut Environment) {
    let read = |name: &str| content(&root.join("proc/net").join(name)).unwrap_or_default();
    let mut families: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let of_v4 = interface(&read("route"), default_v4).map(|name| (name, "ipv4"));
    let of_v6 = interface(&read("ipv6_route"), default_v6).map(|name| (name, "ipv6"));
    for (name, family) in of_v4.into_iter().chain(of_v6) {
        families.entry(name).or_default().push(family);
    }
    for (name, families) in families {
        facts.note(&name, DEFAULT_ROUTE, families.join(" "));
    }
}

/// Returns the interface of the default route with the lowest metric, of those that lines tell.
fn interface(table: &str, route: fn(&[&str]) -> Option<(u32, String)>) -> Option<String> {
    let routes = table.lines().filter_map(|line| route(&line.split_whitespace().collect::<Vec<_>>()));
    routes.min_by_key(|(metric, _)| *metric).map(|(_, name)| name)
}

/// Returns the metric and the interface of a line of `route`, if it is a default route that is up.
fn default_v4(fields: &[&str]) -> Option<(u32, String)> {
    let [name, "00000000", _, flags, _, _, metric, "00000000", ..] = fields else { return None };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    Some((metric.parse().ok()?, (*name).to_owned())).filter(|_| flags & UP > 0 && flags & REJECT == 0)
}

/// The same for a line of `ipv6_route`, whose numbers are all hexadecimal.
fn default_v6(fields: &[&str]) -> Option<(u32, String)> {
    let [ANY_V6, "00", _, _, _, metric, _, _, flags, name] = fields else { return None };
    let number = |field: &str| u32::from_str_radix(field, 16).ok();
    let flags = number(flags)?;
    Some((number(metric)?, (*name).to_owned())).filter(|_| flags & UP > 0 && flags & REJECT == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_interface_of_the_default_route_with_the_lowest_metric_is_noted_by_version_of_ip() {
        let root = tempfile::tempdir().unwrap();
        let net = root.path().join("proc/net");
        fs::create_dir_all(&net).unwrap();
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                  wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
                  ens5\t00000000\t01001FAC\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                  tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n\
                  lo\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n";
        fs::write(net.join("route"), v4).unwrap();
        let any = ANY_V6;
        let gateway = "fe80000000000000000000000000ffff";
        let v6 = format!(
            "{any} 00 {any} 00 {gateway} 00000400 00000001 00000000 00000003     ens6\n\
             {any} 00 {any} 00 {any} ffffffff 00000001 00000000 00200200       lo\n\
             fd000000000000000000000000000000 08 {any} 00 {any} 00000100 00000001 00000000 00000001     ens5\n"
        );
        fs::write(net.join("ipv6_route"), v6).unwrap();
        let noted = |facts: &Environment| {
            ["ens5", "ens6", "wlan0", "tun0", "lo"].map(|name| facts.get(name, DEFAULT_ROUTE).map(str::to_owned))
        };
        let mut facts = Environment::default();
        note(root.path(), &mut facts);
        assert_eq!(noted(&facts), [Some("ipv4".to_owned()), Some("ipv6".to_owned()), None, None, None]);
        let mut facts = Environment::default();
        note(Path::new("/nowhere"), &mut facts);
        assert_eq!(facts, Environment::default());
    }
}
