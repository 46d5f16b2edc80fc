//! Time in which a processor slowed a core down because it was too hot: `thermal_throttle` of the cores
//! (`Documentation/ABI/testing/sysfs-devices-system-cpu`; Intel, since Linux 5.6).

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::procfs::read_number;

const CORES: &str = "sys/devices/system/cpu";
/// The core itself, and all cores of its package.
const FILES: [&str; 2] = ["core_throttle_total_time_ms", "package_throttle_total_time_ms"];
const NANOS_PER_MILLI: u64 = 1_000_000;

pub(super) struct Thermal {
    /// The files of each core; `None` before the first sample.
    cores: Option<Vec<(String, Vec<File>)>>,
}

impl Thermal {
    pub(super) const fn new() -> Self {
        Self { cores: None }
    }
}

impl Source for Thermal {
    fn name(&self) -> &'static str {
        "thermal throttling"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::CPU_TOO_HOT_NS]
    }

    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        for (core, files) in self.cores.get_or_insert_with(|| cores(root)) {
            // What slows the package slows this core, too, and both may count the same time.
            if let Some(ms) = files.iter().filter_map(read_number).max() {
                out.value(host::CPU_TOO_HOT_NS, core, ms.saturating_mul(NANOS_PER_MILLI));
            }
        }
        Ok(())
    }
}

/// Opens the files of all cores that have some.
fn cores(root: &Path) -> Vec<(String, Vec<File>)> {
    let folders = fs::read_dir(root.join(CORES)).into_iter().flatten().flatten();
    let cores = folders.filter_map(|folder| {
        let name = folder.file_name().into_string().ok()?;
        name.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let files = FILES.iter().filter_map(|file| File::open(folder.path().join("thermal_throttle").join(file)).ok());
        Some((name, files.collect::<Vec<_>>()))
    });
    cores.filter(|(_, files)| !files.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    struct Values(BTreeMap<String, u64>);

    impl CounterSink for Values {
        fn value(&mut self, _: &'static str, of: &str, value: u64) {
            self.0.insert(of.to_owned(), value);
        }
    }

    #[test]
    fn a_core_has_the_time_of_its_package_if_that_is_longer() {
        let root = tempfile::tempdir().unwrap();
        let mut source = Thermal::new();
        let write = |core: &str, file: &str, text: &str| {
            let folder = root.path().join(CORES).join(core).join("thermal_throttle");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), text).unwrap();
        };
        write("cpu0", "core_throttle_total_time_ms", "40\n");
        write("cpu0", "package_throttle_total_time_ms", "7\n");
        write("cpu11", "core_throttle_total_time_ms", "0\n");
        write("cpu11", "package_throttle_total_time_ms", "7\n");
        write("cpu2", "core_throttle_count", "3\n");
        write("cpufreq", "core_throttle_total_time_ms", "1\n");
        let mut sample = || {
            let mut values = Values::default();
            source.sample(root.path(), &mut values).unwrap();
            values.0.into_iter().collect::<Vec<_>>()
        };
        let ms = NANOS_PER_MILLI;
        assert_eq!(sample(), [("cpu0".to_owned(), 40 * ms), ("cpu11".to_owned(), 7 * ms)]);
        write("cpu11", "core_throttle_total_time_ms", "190\n");
        assert_eq!(sample()[1], ("cpu11".to_owned(), 190 * ms), "of the same open file");
    }
}
