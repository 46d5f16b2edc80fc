//! The path carries smaller packets than the interfaces of its ends.

use fathom_model::{
    Finding, NextStep, Severity, TestRun,
    names::tcp,
    record::FlowSample,
    units::{Bytes, approximate},
};

use super::FindingRule;
use crate::{
    comparison::tests_of,
    evidence::{TestEvidence, text_evidence},
    path,
};

/// The id of these findings.
const NARROW: &str = "narrow-path";

/// Compares the path MTU that TCP learned (RFC 1191, RFC 8201; `tcpi_pmtu`) with the MTU of both ends. It is a remark: smaller segments cost rate
/// and CPU time, and a path that is compared with one of larger packets is charged with that.
pub(crate) struct NarrowPath;

impl FindingRule for NarrowPath {
    fn id(&self) -> &'static str {
        NARROW
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Some(learned), Some(ends)) = (path_mtu(seen.test), path::mtu(seen.run, seen.test)) else {
            return Vec::new();
        };
        if learned.0 >= ends.0 {
            return Vec::new();
        }
        let own = seen.test.path.as_ref().map_or_else(|| "the path".to_owned(), |name| format!("the path `{name}`"));
        let carries = format!("{own} carries packets of at most {} bytes", learned.0);
        let title = match wider_path(seen, learned) {
            Some((other, mtu)) => {
                format!("{carries} and `{other}` of {}: the difference between them includes smaller segments", mtu.0)
            }
            None => format!("{carries}, although the interfaces of its ends take {}", ends.0),
        };
        let from = &seen.test.from;
        let address = seen.test.to.as_ref().and_then(|to| path::place_on_path(seen.run, seen.test, to).0);
        let next = address.map(|address| {
            NextStep::new(format!("fathom probe {address} --test mtu"))
                .on(from)
                .expected("show the router that reports it")
        });
        vec![
            seen.finding(NARROW, Severity::Remark, "narrow path", title)
                .evidence([text_evidence(from, tcp::PMTU_BYTES, learned.0)])
                .next(next),
        ]
    }
}

/// Reports connections whose segments are far smaller than the packets of the path, though the test does not ask for that: what an end advertises in
/// its SYN (RFC 9293 section 3.7.1) is small, or a device on the way lowers it.
pub(crate) struct SmallSegments;

impl FindingRule for SmallSegments {
    fn id(&self) -> &'static str {
        NARROW
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        /// The headers of IPv6 and TCP with their usual options take less.
        const HEADERS: u64 = 100;
        /// A tunnel or two take less.
        const SMALL: f64 = 0.8;
        /// Segments of Ethernet frames are no sign of a device, however large the packets of one end are.
        const USUAL: u64 = 1_400;
        let largest = |name| samples(seen.test).filter_map(|sample| sample.values.get(name).copied()).max();
        let (Some(mss), Some(mtu)) = (largest(tcp::SND_MSS_BYTES), path_mtu(seen.test)) else { return Vec::new() };
        let mtu = mtu.0;
        let usual = approximate(mtu.saturating_sub(HEADERS).min(USUAL));
        // A sender keeps two segments in the largest window that it has seen (`tcp_bound_to_half_wnd` of Linux 6.18).
        let is_of_window = largest(tcp::SND_WND_BYTES).is_some_and(|window| window < 2 * mtu);
        // A sender that searches for the path MTU itself (RFC 4821) begins with small segments.
        let searches = |host: &str| {
            let setting = seen.environment(host).and_then(|facts| facts.get("sysctl", "net.ipv4.tcp_mtu_probing"));
            setting.is_some_and(|value| value != "0")
        };
        if is_of_window
            || seen.hosts().any(searches)
            || approximate(mss) >= SMALL * usual
            || seen.test.options.text("mss").is_some()
        {
            return Vec::new();
        }
        let title = format!(
            "TCP segments carry {mss} bytes, although both ends take packets of {mtu} bytes: one end advertises a small MSS, or a device on the way lowers it"
        );
        let next = NextStep::new("tcpdump -ni any 'tcp[tcpflags] & tcp-syn != 0'").on(&seen.test.from).expected(
            "show the `mss` of the SYN and of the SYN-ACK; run it at the other end too: a device on the way changes what differs there",
        );
        vec![
            seen.finding(NARROW, Severity::Remark, "small MSS", title)
                .evidence([text_evidence(&seen.test.from, tcp::SND_MSS_BYTES, mss)])
                .next(next),
        ]
    }
}

/// Returns the smallest path MTU that the connections of a test learned.
fn path_mtu(test: &TestRun) -> Option<Bytes> {
    samples(test)
        .filter_map(|sample| sample.values.get(tcp::PMTU_BYTES).copied())
        .filter(|mtu| *mtu > 0)
        .min()
        .map(Bytes)
}

fn samples(test: &TestRun) -> impl Iterator<Item = &FlowSample> {
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    records.flat_map(|record| &record.flows).flat_map(|flow| &flow.samples)
}

/// Returns another path of the comparison on which connections learned of larger packets.
fn wider_path<'a>(seen: &TestEvidence<'a>, than: Bytes) -> Option<(&'a str, Bytes)> {
    let planned = seen.run.plan.tests.iter().find(|planned| planned.name == seen.test.name)?;
    let others = tests_of(seen.run, planned.comparison.as_deref()?);
    let with_mtu = others.into_iter().filter_map(|test| Some((test.path.as_deref()?, path_mtu(test)?)));
    with_mtu.filter(|(_, mtu)| mtu.0 > than.0).max_by_key(|(_, mtu)| mtu.0)
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        names::tcp,
        record::{Flow, FlowSample},
        units::Nanos,
    };

    use crate::run_builder::RunBuilder;

    #[test]
    fn a_path_whose_packets_are_smaller_than_those_of_its_ends_is_told() {
        let with_mtu = |learned: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_000_000]);
            builder.wire("1000000000", "1500");
            let sample = |mtu: u64| FlowSample { values: [(tcp::PMTU_BYTES.to_owned(), mtu)].into(), at_ns: Nanos(1) };
            let flow = Flow { id: "a:1 b:2".to_owned(), samples: vec![sample(1_500), sample(learned)] };
            builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows = vec![flow];
            builder.finding("narrow-path")
        };
        let title = with_mtu(1_400).unwrap().title;
        assert_eq!(
            title,
            "the path carries packets of at most 1400 bytes, although the interfaces of its ends take 1500"
        );
        assert_eq!(with_mtu(1_500), None);
    }

    #[test]
    fn segments_that_are_small_for_the_path_are_told() {
        let told = |mss: u64, asked: Option<&str>| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_000_000]);
            if let Some(asked) = asked {
                builder.run.tests[0].options.set("mss", asked);
            }
            let values = [(tcp::PMTU_BYTES, 1_500), (tcp::SND_MSS_BYTES, mss)];
            let values = values.map(|(name, value)| (name.to_owned(), value)).into();
            let flow = Flow { id: "a:1 b:2".to_owned(), samples: vec![FlowSample { values, at_ns: Nanos(1) }] };
            builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows = vec![flow];
            builder.finding("narrow-path").map(|finding| finding.title)
        };
        let title = told(524, None).unwrap();
        let words = "TCP segments carry 524 bytes, although both ends take packets of 1500 bytes: ";
        assert!(title.starts_with(words), "{title}");
        assert_eq!((told(1_428, None), told(524, Some("536"))), (None, None));
    }
}
