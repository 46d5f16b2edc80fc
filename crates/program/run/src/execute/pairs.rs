//! The pairs of hosts between which a test of several hosts runs, and the part of each pair in its totals.

use std::collections::BTreeSet;

use fathom_model::{
    OptionDoc, Settings, Side, Topology, ValueKind,
    units::{BitsPerSec, Bytes, PerSec, approximate},
};

/// Two hosts of a test, or one and a target that runs no fathom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub from: String,
    pub to: Option<String>,
}

/// Options that say how much there is of something over all pairs.
const TOTALS: [&str; 8] = ["rate", "pps", "flows", "connections", "users", "count", "bytes", "iterations"];
/// Options that change a rate during a test, so that no single total can be divided.
const CHANGING: [&str; 2] = ["profile", "step-rate"];

/// Returns the pairs of a topology, in the order of the hosts.
///
/// # Errors
/// The reason in words if these hosts cannot be joined in this way.
pub(super) fn pairs(topology: Topology, from: &[String], to: Option<&[String]>) -> Result<Vec<Pair>, String> {
    let Some(to) = to else {
        return Ok(from.iter().map(|host| Pair { from: host.clone(), to: None }).collect());
    };
    let pair = |from: &String, to: &String| Pair { from: from.clone(), to: Some(to.clone()) };
    let all = || from.iter().flat_map(|from| to.iter().filter(move |to| *to != from).map(move |to| pair(from, to)));
    let pairs: Vec<Pair> = match topology {
        Topology::Star if from.len() > 1 && to.len() > 1 => {
            return Err(format!("{} hosts and {} hosts are no star", from.len(), to.len()));
        }
        Topology::Star | Topology::Mesh => all().collect(),
        Topology::Ring if from != to => return Err("a ring has one group of hosts, not two".to_owned()),
        Topology::Ring => from.iter().zip(from.iter().cycle().skip(1)).map(|(from, to)| pair(from, to)).collect(),
    };
    if pairs.iter().any(|pair| Some(&pair.from) == pair.to.as_ref()) || pairs.is_empty() {
        return Err("these hosts make no pair".to_owned());
    }
    Ok(pairs)
}

/// Says which hosts are in no pair on a side that names them, because they are the only host on the other side.
pub(super) fn unpaired(pairs: &[Pair], from: &[String], to: &[String]) -> Vec<String> {
    let initiates = |host: &&String| !pairs.iter().any(|pair| pair.from == **host);
    let responds = |host: &&String| !pairs.iter().any(|pair| pair.to.as_ref() == Some(*host));
    let why = "it is the only host on the other side, and no host is tested against itself";
    let initiators = from.iter().filter(initiates).map(|host| format!("`{host}` starts no test: {why}"));
    let responders = to.iter().filter(responds).map(|host| format!("`{host}` answers no test: {why}"));
    initiators.chain(responders).collect()
}

/// Returns a host that several pairs share on the sides that need its device for themselves.
pub(super) fn shared_host<'a>(pairs: &'a [Pair], owners: &[Side]) -> Option<&'a str> {
    let mut hosts = BTreeSet::new();
    let owning = |pair: &'a Pair| {
        let from = owners.contains(&Side::Initiator).then_some(pair.from.as_str());
        let to = pair.to.as_deref().filter(|_| owners.contains(&Side::Responder));
        from.into_iter().chain(to)
    };
    pairs.iter().flat_map(owning).find(|host| !hosts.insert(*host))
}

/// Checks that the totals of a test can be divided among its pairs.
///
/// # Errors
/// The reason in words.
pub(super) fn check_division(options: &Settings, docs: &[OptionDoc], n_pairs: usize) -> Result<(), String> {
    if let Some(changing) = CHANGING.into_iter().find(|name| options.text(name).is_some()) {
        return Err(format!("{changing}: it cannot be divided among {n_pairs} pairs of hosts"));
    }
    let n = u64::try_from(n_pairs).unwrap_or(u64::MAX);
    for doc in totals(docs) {
        let is_default = options.text(doc.name).as_deref() == doc.default;
        if let Some(total) = count(options, doc).filter(|total| *total < n && !is_default) {
            return Err(format!("{}: {total} cannot be divided among {n_pairs} pairs of hosts", doc.name));
        }
    }
    Ok(())
}

/// Returns the options of one of `n_pairs` pairs: its part of each total. A default that is too small to be divided is one for each.
pub(super) fn part_of(options: &Settings, docs: &[OptionDoc], n_pairs: usize, place: usize) -> Settings {
    let (n, place) = (u64::try_from(n_pairs).unwrap_or(u64::MAX).max(1), u64::try_from(place).unwrap_or(u64::MAX));
    let mut part = options.clone();
    for doc in totals(docs) {
        let share = 1.0 / approximate(n);
        let text = match doc.value {
            ValueKind::BitRate => {
                options.bit_rate(doc.name).and_then(|rate| BitsPerSec::new(rate.get() * share)).map(BitsPerSec::exact)
            }
            ValueKind::Rate => {
                options.rate(doc.name).and_then(|rate| PerSec::new(rate.get() * share)).map(PerSec::exact)
            }
            ValueKind::Size => options.size(doc.name).map(|size| Bytes(portion(size.0, n, place)).exact()),
            _ => count(options, doc).map(|total| portion(total, n, place).to_string()),
        };
        if let Some(text) = text {
            part.set(doc.name, text);
        }
    }
    part
}

fn totals(docs: &[OptionDoc]) -> impl Iterator<Item = &OptionDoc> {
    docs.iter().filter(|doc| TOTALS.contains(&doc.name))
}

fn count(options: &Settings, doc: &OptionDoc) -> Option<u64> {
    matches!(doc.value, ValueKind::Count(..) | ValueKind::CountOr(..)).then(|| options.count(doc.name)).flatten()
}

/// A part of a total in whole numbers: the first ones get what does not divide evenly.
fn portion(total: u64, n: u64, place: u64) -> u64 {
    (total / n + u64::from(place < total % n)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<String> {
        (1..=n).map(|n| format!("h{n}")).collect()
    }

    fn joined(topology: Topology, from: &[String], to: &[String]) -> Result<Vec<(String, String)>, String> {
        let pairs = pairs(topology, from, Some(to))?;
        Ok(pairs.into_iter().map(|pair| (pair.from, pair.to.unwrap())).collect())
    }

    #[test]
    fn a_star_joins_each_host_with_the_single_one_in_either_direction() {
        let (many, one) = (names(3), vec!["sut".to_owned()]);
        let inward = joined(Topology::Star, &many, &one).unwrap();
        let outward = joined(Topology::Star, &one, &many).unwrap();
        assert_eq!((inward.len(), outward.len()), (3, 3));
        assert!(inward.iter().all(|(_, to)| to == "sut") && outward.iter().all(|(from, _)| from == "sut"));
        let with_itself = joined(Topology::Star, &many, &many[..1]).unwrap();
        assert_eq!(with_itself.len(), 2, "a host is no companion of its own");
        assert!(joined(Topology::Star, &many, &names(2)).is_err());
    }

    #[test]
    fn hosts_that_are_in_no_pair_on_their_side_are_named() {
        let (many, one) = (names(3), names(1));
        let told = |from: &[String], to: &[String]| {
            unpaired(&pairs(Topology::Star, from, Some(to)).unwrap(), from, to)
                .into_iter()
                .map(|text| text.split(':').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&many, &one), ["`h1` starts no test"]);
        assert_eq!(told(&one, &many), ["`h1` answers no test"]);
        assert_eq!(told(&many, &["sut".to_owned()]), Vec::<String>::new());
        let mesh = pairs(Topology::Mesh, &many, Some(&many)).unwrap();
        assert_eq!(unpaired(&mesh, &many, &many), Vec::<String>::new());
    }

    #[test]
    fn a_mesh_has_all_ordered_pairs_and_a_ring_each_host_with_the_next() {
        for n in 2..6 {
            let hosts = names(n);
            let mesh = joined(Topology::Mesh, &hosts, &hosts).unwrap();
            assert_eq!(mesh.len(), n * (n - 1));
            assert!(mesh.iter().all(|(from, to)| from != to));
            let ring = joined(Topology::Ring, &hosts, &hosts).unwrap();
            assert_eq!(ring.len(), n);
            assert_eq!(ring.last().unwrap(), &(format!("h{n}"), "h1".to_owned()));
        }
        assert!(joined(Topology::Mesh, &names(1), &names(1)).is_err());
        assert!(joined(Topology::Ring, &names(1), &names(1)).is_err());
    }

    #[test]
    fn a_device_that_several_pairs_would_share_is_found_on_the_sides_that_own_it() {
        let inward = pairs(Topology::Star, &names(3), Some(&["sut".to_owned()])).unwrap();
        let outward = pairs(Topology::Star, &["sut".to_owned()], Some(&names(3))).unwrap();
        let (sends, both) = ([Side::Initiator], [Side::Initiator, Side::Responder]);
        assert_eq!((shared_host(&inward, &sends), shared_host(&inward, &both)), (None, Some("sut")));
        assert_eq!((shared_host(&outward, &sends), shared_host(&outward, &[])), (Some("sut"), None));
        let alone = pairs(Topology::Star, &names(3), None).unwrap();
        assert_eq!(shared_host(&alone, &both), None, "each loads a server that runs no fathom");
    }

    const DOCS: &[OptionDoc] = &[
        OptionDoc { name: "rate", value: ValueKind::BitRate, default: None, help: "" },
        OptionDoc { name: "flows", value: ValueKind::Count(1, 9999), default: Some("1"), help: "" },
        OptionDoc { name: "connections", value: ValueKind::Count(1, 9999), default: Some("10"), help: "" },
        OptionDoc { name: "size", value: ValueKind::Size, default: Some("1400"), help: "" },
        OptionDoc { name: "profile", value: ValueKind::Text, default: None, help: "" },
    ];

    #[test]
    fn totals_are_divided_and_add_up_and_the_rest_is_the_same_for_all() {
        let given = Settings::default().with("rate", "10G").with("flows", "300").with("size", "64");
        let whole = given.complete(DOCS).unwrap();
        let parts: Vec<Settings> = (0..8).map(|place| part_of(&whole, DOCS, 8, place)).collect();
        let flows: Vec<u64> = parts.iter().map(|part| part.count("flows").unwrap()).collect();
        assert_eq!((flows.iter().sum::<u64>(), flows[0], flows[7]), (300, 38, 37));
        assert!(parts.iter().all(|part| part.bit_rate("rate") == BitsPerSec::new(1.25e9)));
        assert!(parts.iter().all(|part| part.text("size") == whole.text("size")));
        // Ten connections are two for the first two pairs.
        assert_eq!(parts.iter().map(|part| part.count("connections").unwrap()).sum::<u64>(), 10);
    }

    #[test]
    fn a_total_that_is_too_small_is_refused_and_a_default_is_one_for_each() {
        let check = |given: Settings| check_division(&given.complete(DOCS).unwrap(), DOCS, 8);
        assert_eq!(check(Settings::default()), Ok(()));
        let whole = Settings::default().complete(DOCS).unwrap();
        assert!((0..8).all(|place| part_of(&whole, DOCS, 8, place).count("flows") == Some(1)));
        assert!(check(Settings::default().with("flows", "4")).unwrap_err().starts_with("flows: 4 cannot be divided"));
        assert!(check(Settings::default().with("profile", "0-1k:1s")).unwrap_err().starts_with("profile: "));
    }
}
