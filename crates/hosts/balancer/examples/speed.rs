//! How fast the tables are on this machine: `cargo run --release --package fathom-balancer --example speed`.

use std::{
    fs,
    hint::black_box,
    io::{self, Write as _},
    sync::Arc,
};

use etherparse::PacketBuilder;
use fathom_balancer::{
    Balancer, BalancerSettings, DEFAULT_GROUP, Decision, Target,
    flows::FlowLookup,
    fragments::FragmentSettings,
    maglev::{MaglevTable, TableSize},
    simulation::{
        SimulatedArrivals,
        fragments::{FragmentOrder, FragmentSimulation, IdModel},
    },
};
use fathom_model::units::{Nanos, approximate, significant};

const N_PACKETS: u16 = 20_000;

fn targets(n: u32) -> Vec<Target> {
    (1..=n).map(|number| Target { name: format!("t{number}"), mark: number, weight: 1 }).collect()
}

/// The time that this thread has had a processor, in ns: the first field of schedstat (sched-stats.rst of the kernel).
fn on_cpu() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.ok_or_else(|| io::Error::other("/proc/thread-self/schedstat does not begin with a number"))
}

/// Prints how many of something there were in a second of processor time, at best of five times.
fn told(what: &str, mut work: impl FnMut() -> u64) -> io::Result<()> {
    let mut best = 0.0_f64;
    for _ in 0..5 {
        let (begin, mut n, mut span) = (on_cpu()?, 0, 0);
        // The kernel counts by ticks of some milliseconds.
        while span < 200_000_000 {
            n += work();
            span = on_cpu()? - begin;
        }
        best = best.max(approximate(n) * 1e9 / approximate(span));
    }
    writeln!(io::stdout(), "{what:<55} {:>10} M/s {:>8} ns", significant(best / 1e6), significant(1e9 / best))
}

/// Packets per second through a balancer with this many rules, none of which but the last matches.
fn decisions(n_rules: u32, flow_lookup: FlowLookup) -> impl FnMut() -> u64 {
    let balancer =
        Arc::new(Balancer::new(BalancerSettings { flow_lookup, ..BalancerSettings::default() }).expect("usual sizes"));
    for target in targets(10) {
        balancer.set_target(DEFAULT_GROUP, target).expect("there is room");
    }
    let rule = |number: u32| {
        let port = if number + 1 == n_rules { "53".to_owned() } else { (1000 + number).to_string() };
        format!("r{number:05},group={DEFAULT_GROUP},protocols=udp,ports={port}").parse().expect("it is a rule")
    };
    balancer.set_flows((0..n_rules).map(rule).collect()).expect("there is room");
    let mut worker = balancer.worker();
    let packets: Vec<Vec<u8>> = (0..N_PACKETS)
        .map(|port| {
            let mut packet = Vec::new();
            let builder = PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 8, 1], 64).udp(port, 53);
            builder.write(&mut packet, &[0; 18]).expect("memory takes it");
            packet
        })
        .collect();
    move || {
        let mut forwarded = |packet: &Vec<u8>| matches!(worker.decide(packet, Nanos::ZERO), Decision::Forward { .. });
        let n = packets.iter().filter(|packet| forwarded(packet)).count();
        assert_eq!(n, packets.len(), "every packet has a target");
        n.try_into().expect("it is small")
    }
}

fn main() -> io::Result<()> {
    let load = FragmentSimulation {
        table: FragmentSettings { n_slots: 4001, n_buckets: 4001, n_shards: 1, ..FragmentSettings::USUAL },
        rate_per_sec: 10_000.0,
        duration: Nanos::from_secs(300),
        arrivals: SimulatedArrivals::Uniform,
        ids: IdModel::Sequential,
        n_sources: 1,
        n_fragments: 1,
        order: FragmentOrder::Forward,
        seed: 1,
    };
    told("inserts into the fragment table, in a simulation", || load.run().expect("it is possible").n_datagrams)?;
    told("decisions without rules", decisions(0, FlowLookup::Linear))?;
    for n in [10, 250, 2000] {
        told(&format!("decisions with {n} rules, linear"), decisions(n, FlowLookup::Linear))?;
        told(&format!("decisions with {n} rules, indexed"), decisions(n, FlowLookup::Indexed))?;
    }
    for n in [10, 1000] {
        let targets = targets(n);
        told(&format!("places of a table of 65537 built for {n} targets"), || {
            black_box(MaglevTable::build(&targets, TableSize::USUAL));
            TableSize::USUAL.get().into()
        })?;
    }
    Ok(())
}
