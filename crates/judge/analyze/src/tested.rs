//! The interface of the host at the center of a star: its traffic, and the queues and cores that work for it.

use fathom_model::{
    CoreShare, QueueShare, Run, TestRun, TestedHost, Trial,
    names::host as counter,
    units::{approximate, ratio},
};
use fathom_statistics::mean;

use crate::{context::AnalysisContext, evidence::TestEvidence, path::center};

/// Returns the tested host of a star, as its counters saw it while all pairs measured. `None` for other tests.
pub(crate) fn tested_host(run: &Run, test: &TestRun, context: &AnalysisContext) -> Option<TestedHost> {
    let host = center(test)?;
    let interface = run.hosts.get(host)?.interface.clone()?;
    let seen = TestEvidence::new(run, test, context);
    let rate = |counter: &str| rate_of(&seen, (host, &interface), counter);
    Some(TestedHost {
        rx_frames_per_sec: rate(counter::DEV_RX_FRAMES)?,
        tx_frames_per_sec: rate(counter::DEV_TX_FRAMES)?,
        rx_bytes_per_sec: rate(counter::DEV_RX_BYTES)?,
        tx_bytes_per_sec: rate(counter::DEV_TX_BYTES)?,
        queues: queues(&seen, host, &interface),
        cores: cores(&seen, host),
        host: host.to_owned(),
        interface,
    })
}

/// The mean growth per second of a counter of an interface over the trials.
fn rate_of(seen: &TestEvidence<'_>, (host, interface): (&str, &str), name: &str) -> Option<f64> {
    let of_trial = |trial: &&Trial| {
        let (record, (first, last)) = seen.measured_samples(trial, host)?;
        let series = record.series_of(name).find(|series| series.of == interface)?;
        let grown = series.at(last)?.checked_sub(series.at(first)?)?;
        Some(approximate(grown) / (record.at_ns[last] - record.at_ns[first]).as_secs_f64())
    };
    mean(&seen.trials().iter().filter_map(of_trial).collect::<Vec<_>>()).filter(|rate| rate.is_finite())
}

/// Returns the queues of an interface with their parts of its interrupts, the largest first. Empty for a device without queues of its own.
fn queues(seen: &TestEvidence<'_>, host: &str, interface: &str) -> Vec<QueueShare> {
    let prefix = format!("{interface} ");
    let of_interface = seen.growth_by_instance(host, counter::QUEUE_INTERRUPTS);
    let of_interface: Vec<_> = of_interface.into_iter().filter(|(name, _)| name.starts_with(&prefix)).collect();
    let all: u64 = of_interface.iter().map(|(_, n)| n).sum();
    let queue = |(name, n): (&str, u64)| {
        let core = seen.last_value_of(host, counter::QUEUE_INTERRUPT_CORE, name);
        Some(QueueShare { name: name.trim_start_matches(&prefix).to_owned(), core, share: ratio(n, all)? })
    };
    of_interface.into_iter().filter_map(queue).collect()
}

/// Returns the cores of a host with their parts of its packets, the largest first.
fn cores(seen: &TestEvidence<'_>, host: &str) -> Vec<CoreShare> {
    let packets = seen.growth_by_instance(host, counter::SOFTNET_PROCESSED);
    let all: u64 = packets.iter().map(|(_, n)| n).sum();
    let loads = seen.cores(host);
    let busy = |core: &str| loads.iter().find(|load| load.core == core).map(|load| load.busy().min(1.0));
    let core =
        |(core, n): (&str, u64)| Some(CoreShare { core: core.to_owned(), packets: ratio(n, all)?, busy: busy(core) });
    packets.into_iter().filter_map(core).collect()
}

#[cfg(test)]
mod tests {
    use fathom_model::names::host as counter;

    use crate::run_builder::RunBuilder;

    #[test]
    fn the_interface_of_the_tested_host_is_read_over_the_measured_second() {
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[1_000]), ("c2", &[1_000])]);
        for (name, growth) in [
            (counter::DEV_RX_FRAMES, 2_000),
            (counter::DEV_TX_FRAMES, 20),
            (counter::DEV_RX_BYTES, 90_000),
            (counter::DEV_TX_BYTES, 900),
        ] {
            builder.host_counter("target", (name, "eth0"), growth);
        }
        builder.host_counter("target", (counter::SOFTNET_PROCESSED, "cpu0"), 300);
        builder.host_counter("target", (counter::SOFTNET_PROCESSED, "cpu1"), 100);
        builder.host_counter("target", (counter::QUEUE_INTERRUPTS, "eth0 irq38 virtio2-input.0"), 30);
        builder.host_counter("target", (counter::QUEUE_INTERRUPTS, "eth1 irq40 virtio3-input.0"), 99);
        let run = builder.analyzed();
        let tested = run.tests[0].sharing.as_ref().unwrap().tested.clone().unwrap();
        assert_eq!((tested.host.as_str(), tested.interface.as_str()), ("target", "eth0"));
        assert!(tested.rx_frames_per_sec > 100.0 * tested.tx_frames_per_sec - 1e-6, "{tested:?}");
        assert!((tested.rx_bytes_per_sec / tested.rx_frames_per_sec - 45.0).abs() < 1e-9, "{tested:?}");
        assert_eq!((tested.cores[0].core.as_str(), tested.cores[0].packets), ("cpu0", 0.75));
        assert_eq!(
            (tested.queues.len(), tested.queues[0].share),
            (1, 1.0),
            "those of the other interface do not count"
        );
    }

    #[test]
    fn a_test_of_two_hosts_has_no_center() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        assert_eq!(super::center(&builder.run.tests[0]), None);
    }
}
