//! The cost of a sample on a large host: 64 cores, and 16 interfaces with 64 queues each.

use std::path::Path;

use fathom_model::units::Nanos;
use fathom_monitor::{HostMonitor, ProgramNames, Source, every_source};
use fathom_sys::clock::thread_cpu;
use fathom_testkit::large_host::{INTERFACES, QUEUES, write_interrupts, write_large_host};

const SAMPLES: usize = 20;
/// At ten samples per second this is a thirtieth of one of the 64 cores, and ten times that in a build without optimization.
const SAMPLE_MAX: Nanos = Nanos::from_millis(if cfg!(debug_assertions) { 30 } else { 3 });

/// Returns the CPU time of a sample after the first one, and the number of series.
fn measured(root: &Path, sources: Vec<Box<dyn Source>>) -> (Nanos, usize) {
    let mut monitor = HostMonitor::new(root, sources, ProgramNames::Hidden);
    let mut took = Nanos::ZERO;
    for n in 0..=SAMPLES {
        write_interrupts(root, n);
        let begin = thread_cpu();
        monitor.sample(Nanos::from_millis(100 * u64::try_from(n).expect("few samples")));
        took += if n > 0 { thread_cpu() - begin } else { Nanos::ZERO };
    }
    (Nanos(took.0 / u64::try_from(SAMPLES).expect("few samples")), monitor.finish().series.len())
}

#[test]
fn a_sample_of_a_large_host_costs_little_enough_for_ten_in_a_second() {
    let root = tempfile::tempdir().unwrap();
    write_large_host(root.path());
    for source in every_source() {
        let name = source.name();
        let (took, n_series) = measured(root.path(), vec![source]);
        println!("{name:>15}: {took}, {n_series} series");
    }
    let (took, n_series) = measured(root.path(), every_source());
    println!("{:>15}: {took}, {n_series} series", "all");
    assert!(n_series >= 2 * INTERFACES * QUEUES, "{n_series}");
    assert!(took < SAMPLE_MAX, "{took}");
}
