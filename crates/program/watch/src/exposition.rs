//! The counters of a host in the text format of `OpenMetrics`, for a scraper.

use std::fmt;

use fathom_model::{names::host::GAUGES, units::approximate};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text::encode},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::samples::Samples;

/// Returns all counters of the newest sample, with the instance as a label: `fathom_dev_rx_bytes_total{instance="eth0"} 512`.
///
/// Times are in seconds, as `OpenMetrics` asks for; everything else has its unit in its name.
#[must_use]
pub fn exposition(samples: &Samples) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Newest::of(samples)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a text takes everything");
    text
}

/// The newest values by counter.
#[derive(Debug)]
struct Newest(Vec<(String, Vec<(String, u64)>)>);

impl Newest {
    fn of(samples: &Samples) -> Self {
        let mut all: Vec<(String, Vec<(String, u64)>)> = Vec::new();
        let values = samples.rows().back().map(|row| row.values.as_slice()).unwrap_or_default();
        for (key, value) in samples.keys().iter().zip(values) {
            let Some(value) = value else { continue };
            let place = all.iter().position(|(name, _)| *name == key.name).unwrap_or_else(|| {
                all.push((key.name.clone(), Vec::new()));
                all.len() - 1
            });
            all[place].1.push((key.of.clone(), *value));
        }
        Self(all)
    }
}

impl Collector for Newest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, values) in &self.0 {
            let (stem, is_time) = name.strip_suffix("_ns").map_or((name.as_str(), false), |stem| (stem, true));
            let unit = is_time.then_some(&Unit::Seconds);
            let is_gauge = GAUGES.contains(&name.as_str());
            let scaled = |value: u64| if is_time { approximate(value) / 1e9 } else { approximate(value) };
            let kind = if is_gauge { ConstGauge::new(0.0).metric_type() } else { ConstCounter::new(0.0).metric_type() };
            let help = "a counter of the host, see docs/watch.md";
            let told = format!("fathom_{stem}");
            let mut family = encoder.encode_descriptor(&told, help, unit, kind)?;
            for (of, value) in values {
                let labels = [("instance", of.as_str())];
                let labelled = family.encode_family(&labels)?;
                if is_gauge {
                    ConstGauge::new(scaled(*value)).encode(labelled)?;
                } else {
                    ConstCounter::new(scaled(*value)).encode(labelled)?;
                }
            }
        }
        Ok(())
    }
}
