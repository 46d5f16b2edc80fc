//! The counters of a host in the text format of `OpenMetrics`, for a scraper.

use std::fmt;

use fathom_model::{names::host::GAUGES, units::approximate};
use fathom_monitor::{Source, every_source};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text::encode},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::samples::Samples;

/// Returns all counters of the newest sample, with the instance as a label: `fathom_dev_rx_bytes_total{of="eth0"} 512`. `losses` are
/// the sources that could not be read, each with the reason behind a colon.
///
/// Times are in seconds, as `OpenMetrics` asks for; everything else has its unit in its name. The label is not called `instance`,
/// because a scraper gives that name to the host.
#[must_use]
pub fn exposition(samples: &Samples, losses: &[String]) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Newest::of(samples)));
    registry.register_collector(Box::new(Unread(losses.to_vec())));
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
        let sources = every_source();
        for (name, values) in &self.0 {
            let (stem, is_time) = name.strip_suffix("_ns").map_or((name.as_str(), false), |stem| (stem, true));
            let unit = is_time.then_some(&Unit::Seconds);
            let is_gauge = GAUGES.contains(&name.as_str());
            let scaled = |value: u64| if is_time { approximate(value) / 1e9 } else { approximate(value) };
            let kind = if is_gauge { ConstGauge::new(0.0).metric_type() } else { ConstCounter::new(0.0).metric_type() };
            let help = help(name, is_gauge, &sources);
            let told = format!("fathom_{stem}");
            let mut family = encoder.encode_descriptor(&told, &help, unit, kind)?;
            for (of, value) in values {
                let labels = [("of", of.as_str())];
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

/// Returns what a value is: how it behaves over time, and the source that it is from.
fn help(name: &str, is_gauge: bool, sources: &[Box<dyn Source>]) -> String {
    let kind = if is_gauge { "the value now" } else { "cumulative since the host booted or the interface appeared" };
    let of_source = |source: &dyn Source| source.counters().contains(&name).then(|| source.name());
    match sources.iter().find_map(|source| of_source(&**source)) {
        Some(source) => format!("{kind}, from the source {source}"),
        None => kind.to_owned(),
    }
}

/// The sources that could not be read.
#[derive(Debug)]
struct Unread(Vec<String>);

impl Collector for Unread {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "1 for a source whose values are missing, with the reason";
        let gauge = ConstGauge::new(1.0);
        let mut family = encoder.encode_descriptor("fathom_source_unread", help, None, gauge.metric_type())?;
        for loss in &self.0 {
            let (source, why) = loss.split_once(": ").unwrap_or((loss, ""));
            gauge.encode(family.encode_family(&[("of", source), ("why", why)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::units::Nanos;

    use super::*;
    use crate::samples::Key;

    #[test]
    fn a_value_says_what_it_is_and_a_source_that_was_not_read_why() {
        let mut samples = Samples::new(2);
        samples.begin(Nanos::from_secs(1));
        for (name, of, value) in [("dev_rx_bytes", "eth0", 512), ("sock_tcp_in_use", "", 7)] {
            let place = samples.place(Key { name: name.to_owned(), of: of.to_owned() });
            samples.set(place, Some(value));
        }
        let text = exposition(&samples, &["nft: Operation not permitted".to_owned()]);
        for line in [
            "# HELP fathom_dev_rx_bytes cumulative since the host booted or the interface appeared, from the source netdev",
            "fathom_dev_rx_bytes_total{of=\"eth0\"} 512.0",
            "# HELP fathom_sock_tcp_in_use the value now, from the source sockstat",
            "fathom_source_unread{of=\"nft\",why=\"Operation not permitted\"} 1.0",
        ] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
    }
}
