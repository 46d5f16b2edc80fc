//! The frequency that each core runs at, and the one that it is made for: `cpufreq` of the cores
//! (`Documentation/admin-guide/pm/cpufreq.rst`, `pm/intel_pstate.rst`, `acpi/cppc_sysfs.rst`). Virtual machines have none.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use fathom_model::{names::host, units::Nanos};
use fathom_sys::clock;

use super::{CounterSink, Source};
use crate::procfs::read_number;

const CORES: &str = "sys/devices/system/cpu";
/// Where the frequency stands that a core keeps under load, and the kHz of its unit, the best first: Intel's base frequency; that of the
/// firmware's tables; the highest one of the driver, which with a boost is that of few busy cores.
const NOMINAL: [(&str, u64); 3] =
    [("cpufreq/base_frequency", 1), ("acpi_cppc/nominal_freq", 1_000), ("cpufreq/cpuinfo_max_freq", 1)];
/// On x86, Linux 4.13 to 5.17 waits 10 ms for the frequency of each core, and firmware may take as long.
const READING_MAX: Nanos = Nanos::from_millis(5);
/// A thread may lose its core while it reads, but hardly at each of so many.
const CORES_TRIED: usize = 2;

pub(super) struct Frequency {
    /// `None` before the first sample.
    cores: Option<Vec<Core>>,
    clock: fn() -> Nanos,
}

struct Core {
    name: String,
    current: File,
    nominal_khz: u64,
}

impl Frequency {
    pub(super) const fn new() -> Self {
        Self { cores: None, clock: clock::now }
    }

    /// Returns true if each of the first cores makes its reader wait.
    fn makes_wait(&self, cores: &[Core]) -> bool {
        let tried = cores.iter().take(CORES_TRIED);
        !cores.is_empty()
            && tried.fold(true, |is_slow, core| {
                let begun = (self.clock)();
                let _ = read_number(&core.current);
                is_slow && (self.clock)().since(begun) > READING_MAX
            })
    }
}

impl Source for Frequency {
    fn name(&self) -> &'static str {
        "frequencies"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::CPU_FREQUENCY_KHZ, host::CPU_NOMINAL_FREQUENCY_KHZ]
    }

    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        if self.cores.is_none() {
            let cores = cores(root);
            // Others are not sampled late for it.
            if self.makes_wait(&cores) {
                self.cores = Some(Vec::new());
                return Err(io::Error::other("the kernel waits for the frequency of each core, so that none is read"));
            }
            self.cores = Some(cores);
        }
        for core in self.cores.iter().flatten() {
            if let Some(khz) = read_number(&core.current) {
                out.value(host::CPU_FREQUENCY_KHZ, &core.name, khz);
                out.value(host::CPU_NOMINAL_FREQUENCY_KHZ, &core.name, core.nominal_khz);
            }
        }
        Ok(())
    }
}

/// Opens the files of all cores that tell both frequencies.
fn cores(root: &Path) -> Vec<Core> {
    let folders = fs::read_dir(root.join(CORES)).into_iter().flatten().flatten();
    let cores = folders.filter_map(|folder| {
        let name = folder.file_name().into_string().ok()?;
        name.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let (current, nominal_khz) =
            (File::open(folder.path().join("cpufreq/scaling_cur_freq")).ok()?, nominal(&folder.path())?);
        Some(Core { name, current, nominal_khz })
    });
    cores.collect()
}

/// Returns the frequency that a core is made for, in kHz. Firmware that does not know it tells 0.
fn nominal(core: &Path) -> Option<u64> {
    let read =
        |(file, unit): &(&str, u64)| Some(read_number(&File::open(core.join(file)).ok()?)?.saturating_mul(*unit));
    NOMINAL.iter().filter_map(read).find(|khz| *khz > 0)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::*;

    /// A clock by which each reading takes 10 ms.
    fn slow_clock() -> Nanos {
        static TIME: AtomicU64 = AtomicU64::new(0);
        Nanos(TIME.fetch_add(10_000_000, Ordering::Relaxed))
    }

    #[derive(Default)]
    struct Values(BTreeSet<(&'static str, String, u64)>);

    impl CounterSink for Values {
        fn value(&mut self, counter: &'static str, of: &str, value: u64) {
            self.0.insert((counter, of.to_owned(), value));
        }
    }

    #[test]
    fn each_core_has_its_frequency_and_the_one_that_it_is_made_for() {
        let root = tempfile::tempdir().unwrap();
        let write = |core: &str, file: &str, text: &str| {
            let path = root.path().join(CORES).join(core).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for core in ["cpu0", "cpu1", "cpu2", "cpu3"] {
            write(core, "cpufreq/scaling_cur_freq", "1200000\n");
            write(core, "cpufreq/cpuinfo_max_freq", "3800000\n");
        }
        write("cpu0", "cpufreq/base_frequency", "3000000\n");
        write("cpu0", "acpi_cppc/nominal_freq", "2900\n");
        write("cpu1", "acpi_cppc/nominal_freq", "2900\n");
        write("cpu2", "acpi_cppc/nominal_freq", "0\n");
        fs::remove_file(root.path().join(CORES).join("cpu3/cpufreq/cpuinfo_max_freq")).unwrap();
        write("cpufreq", "policy0/scaling_cur_freq", "1\n");
        let (mut source, mut values) = (Frequency::new(), Values::default());
        source.sample(root.path(), &mut values).unwrap();
        let nominal = [("cpu0", 3_000_000), ("cpu1", 2_900_000), ("cpu2", 3_800_000)];
        let expected = nominal.into_iter().flat_map(|(core, khz)| {
            [
                (host::CPU_FREQUENCY_KHZ, core.to_owned(), 1_200_000),
                (host::CPU_NOMINAL_FREQUENCY_KHZ, core.to_owned(), khz),
            ]
        });
        assert_eq!(values.0, expected.collect(), "of the fourth, nothing says how fast it should be");
        let mut slow = Frequency { clock: slow_clock, ..Frequency::new() };
        let mut none = Values::default();
        assert!(slow.sample(root.path(), &mut none).is_err(), "once");
        slow.sample(root.path(), &mut none).unwrap();
        assert!(none.0.is_empty(), "a value of the first sample would be that of a core at rest");
        write("cpu0", "cpufreq/scaling_cur_freq", "2400000\n");
        source.sample(root.path(), &mut values).unwrap();
        assert!(values.0.contains(&(host::CPU_FREQUENCY_KHZ, "cpu0".to_owned(), 2_400_000)));
    }
}
