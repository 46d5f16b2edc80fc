//! Interrupts of the queues of network devices, and the core that takes them: `/proc/interrupts`, written by `kernel/irq/proc.c`.
//!
//! A row belongs to an interface if its name has the name of the interface (`eth0-TxRx-3`) or of its device (`virtio2-input.0`,
//! `mlx5_comp3@pci:0000:03:00.0`). A namespace of interfaces without a device has no queues, which is known. Of a device without rows, such as those
//! of Hyper-V, it is not known how often and where it interrupts.

use std::{fs, io, path::Path, str};

use fathom_model::names::host;

use super::{CounterSink, Source, core_columns::core_columns};
use crate::procfs::{ProcFile, fields, lines, number};

const FILE: &str = "proc/interrupts";
/// The interfaces of the namespace.
const INTERFACES: &str = "sys/class/net";
/// The queues of 16 interfaces with 64 each; those of more interfaces are left out, so that they do not displace other counters.
const QUEUES_MAX: usize = 1024;

pub(super) struct Interrupts {
    file: ProcFile,
    /// The cores of the columns.
    cores: Vec<Option<usize>>,
    /// All numbered rows seen, by their number, with the queue if it is one.
    rows: Vec<(u32, Option<QueueInterrupt>)>,
    /// Why there is no queue, unless no interface has a device.
    rowless: Option<String>,
}

/// An interface with the name of its device (`virtio2`, `0000:03:00.0`), which is empty for one without a device.
type NamedDevice = (String, Vec<u8>);

struct QueueInterrupt {
    /// The interface, the number and the name: `eth0 irq38 virtio2-input.0`.
    of: String,
    /// The name at the end of its row.
    name: Vec<u8>,
    /// The newest row. One that has not changed since is not read again: most queues of a large host are idle.
    row: Vec<u8>,
    /// The last count of each core, by the number of the core.
    shown: Vec<u32>,
    total: u64,
    /// The core that took most of the newest interrupts.
    core: usize,
}

impl Interrupts {
    pub(super) const fn new() -> Self {
        Self { file: ProcFile::new(FILE), cores: Vec::new(), rows: Vec::new(), rowless: None }
    }
}

impl Source for Interrupts {
    fn name(&self) -> &'static str {
        "interrupts"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::QUEUE_INTERRUPTS, host::QUEUE_INTERRUPT_CORE]
    }

    /// Interfaces without a device have no interrupts.
    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let text = self.file.read(root)?;
        let mut all = lines(text);
        self.cores.clear();
        self.cores.extend(all.next().into_iter().flat_map(core_columns));
        if self.cores.is_empty() {
            // A container may put an empty file in this place.
            return Err(io::Error::other(format!("/{FILE} has no column of a core")));
        }
        let mut devices = self.rows.is_empty().then(|| devices_below(root));
        let (mut n_queues, mut next) = (0, 0);
        for line in all {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let Some(irq) = number::<u32>(line[..colon].trim_ascii_start()) else { continue };
            let counts = &line[colon + 1..];
            // Rows come in the order of their numbers, so the next one is that after the last one.
            let is_next = self.rows.get(next).is_some_and(|(known, _)| *known == irq);
            let place = if is_next { Ok(next) } else { self.rows.binary_search_by_key(&irq, |(known, _)| *known) };
            let place = match place {
                Ok(place) => place,
                Err(place) => {
                    // Without the names of the interfaces a row is nobody's, and is looked at again in the next sample.
                    let Ok(devices) = devices.get_or_insert_with(|| devices_below(root)) else { continue };
                    let n_known = self.rows.iter().filter(|(_, queue)| queue.is_some()).count();
                    let queue = QueueInterrupt::of(irq, counts, self.cores.len(), devices);
                    self.rows.insert(place, (irq, queue.filter(|_| n_known < QUEUES_MAX)));
                    place
                }
            };
            next = place + 1;
            let Some(queue) = &mut self.rows[place].1 else { continue };
            if queue.follow(counts, &self.cores) {
                out.value(host::QUEUE_INTERRUPTS, &queue.of, queue.total);
                out.value(
                    host::QUEUE_INTERRUPT_CORE,
                    &queue.of,
                    u64::try_from(queue.core).expect("a core fits into 64 bits"),
                );
                n_queues += 1;
            }
        }
        if let Some(devices) = devices {
            let devices = devices?;
            self.rowless = if n_queues == 0 { rowless(root, &devices) } else { None };
        }
        match &self.rowless {
            Some(why) if n_queues == 0 => Err(io::Error::other(why.clone())),
            _ => Ok(()),
        }
    }
}

impl QueueInterrupt {
    /// Returns the queue of a row, if it belongs to one of these interfaces.
    fn of(irq: u32, counts: &[u8], n_cores: usize, devices: &[NamedDevice]) -> Option<Self> {
        let name = fields(counts).last()?;
        let chip: Vec<&[u8]> = fields(counts).skip(n_cores).collect();
        let is_named = |word: &[u8]| !word.is_empty() && chip.iter().any(|field| has_word(field, word));
        let (interface, _) =
            devices.iter().find(|(interface, device)| is_named(interface.as_bytes()) || is_named(device))?;
        let name_text = str::from_utf8(name).ok()?;
        Some(Self {
            of: format!("{interface} irq{irq} {name_text}"),
            name: name.to_vec(),
            row: Vec::new(),
            shown: Vec::new(),
            total: 0,
            core: 0,
        })
    }

    /// Takes a row. Returns false for one that was cut off, or that another device has got.
    fn follow(&mut self, row: &[u8], cores: &[Option<usize>]) -> bool {
        if self.row == row {
            return true;
        }
        if !row.ends_with(&self.name) {
            return false;
        }
        let mut counts = row;
        let (mut most, mut core_of_most) = (0, None);
        for core in cores {
            let Some((count, rest)) = leading_number(counts) else { return false };
            counts = rest;
            let Some(core) = *core else { continue };
            if self.shown.len() <= core {
                self.shown.resize(core + 1, 0);
            }
            // The kernel counts in 32 bits.
            let grown = count.wrapping_sub(self.shown[core]);
            self.shown[core] = count;
            self.total += u64::from(grown);
            if grown > most {
                (most, core_of_most) = (grown, Some(core));
            }
        }
        self.core = core_of_most.unwrap_or(self.core);
        self.row.clear();
        self.row.extend_from_slice(row);
        true
    }
}

/// Returns the number that a text begins with, and the rest. A table of a large host has a hundred thousand of them.
fn leading_number(text: &[u8]) -> Option<(u32, &[u8])> {
    let start = text.iter().position(|byte| *byte != b' ')?;
    let digits = &text[start..];
    let n = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    let mut number = 0_u32;
    for digit in &digits[..n] {
        number = number.checked_mul(10)?.checked_add(u32::from(digit - b'0'))?;
    }
    (n > 0).then_some((number, &digits[n..]))
}

/// Returns the interfaces with the names of their devices.
fn devices_below(root: &Path) -> io::Result<Vec<NamedDevice>> {
    let unread = |error: io::Error| io::Error::new(error.kind(), format!("cannot read /{INTERFACES}: {error}"));
    let entries = fs::read_dir(root.join(INTERFACES)).map_err(unread)?.flatten();
    let device = |interface: &Path| {
        let link = fs::read_link(interface.join("device")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned().into_bytes())
    };
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, device(&entry.path()).unwrap_or_default()))
        })
        .collect();
    all.sort_unstable();
    Ok(all)
}

/// Returns why none of these interfaces has a queue; `None` if none has a device that could have one. A card that is down has freed its own.
fn rowless(root: &Path, devices: &[NamedDevice]) -> Option<String> {
    let is_down = |name: &str| {
        fs::read_to_string(root.join(INTERFACES).join(name).join("operstate")).is_ok_and(|state| state.trim() == "down")
    };
    let with_queues = devices.iter().filter(|(name, device)| !device.is_empty() && !is_down(name));
    let named: Vec<String> =
        with_queues.map(|(name, device)| format!("{name} or its device {}", String::from_utf8_lossy(device))).collect();
    (!named.is_empty()).then(|| format!("no row of /{FILE} names {}", named.join(", ")))
}

/// Returns true if a text has a word that no letter or digit continues: `eth1` is no word of `eth10-rx-0`.
fn has_word(text: &[u8], word: &[u8]) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
    text.windows(word.len()).enumerate().any(|(start, window)| {
        let before = start.checked_sub(1).and_then(|before| text.get(before));
        window == word && is_end(before) && is_end(text.get(start + word.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_belongs_to_the_interface_or_the_device_that_its_name_names() {
        let devices = [
            ("enp3s0f0".to_owned(), b"0000:03:00.0".to_vec()),
            ("eth1".to_owned(), b"virtio2".to_vec()),
            ("lo".to_owned(), Vec::new()),
        ];
        for (row, interface) in [
            ("7 8 PCI-MSI 524288-edge eth1-TxRx-0", Some("eth1")),
            ("7 8 PCI-MSI 524288-edge iavf-eth1-TxRx-0", Some("eth1")),
            ("7 8 PCI-MSI 524288-edge eth10-TxRx-0", None),
            ("7 8 PCI-MSI 1-edge mlx5_comp0@pci:0000:03:00.0", Some("enp3s0f0")),
            ("7 8 PCI-MSIX-0000:03:00.0 1-edge mlx5_comp0", Some("enp3s0f0")),
            ("7 8 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0", Some("eth1")),
            ("7 8 PCI-MSIX-0000:00:03.0 1-edge virtio21-input.0", None),
            ("7 8 IO-APIC 2-edge timer", None),
        ] {
            let of = QueueInterrupt::of(38, row.as_bytes(), 2, &devices).map(|queue| queue.of);
            assert_eq!(of.as_deref().and_then(|of| of.split(' ').next()), interface, "{row}");
        }
    }

    #[derive(Default)]
    struct Values(Vec<(&'static str, String, u64)>);

    impl CounterSink for Values {
        fn value(&mut self, name: &'static str, of: &str, value: u64) {
            self.0.push((name, of.to_owned(), value));
        }
    }

    /// Returns the reason of a sample below this root, and the values.
    fn sampled(source: &mut Interrupts, root: &Path) -> (Option<String>, Vec<(&'static str, String, u64)>) {
        let mut values = Values::default();
        (source.sample(root, &mut values).err().map(|error| error.to_string()), values.0)
    }

    const TABLE: &str =
        "            CPU0       CPU1\n  7:  1  2 IO-APIC 2-edge timer\n 38:  5  0 PCI-MSIX 1-edge virtio2-input.0\n";

    fn root_with(interrupts: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/interrupts"), interrupts).unwrap();
        root
    }

    fn add_interface(root: &Path, name: &str, device: Option<&str>) {
        let folder = root.join(INTERFACES).join(name);
        fs::create_dir_all(&folder).unwrap();
        if let Some(device) = device {
            std::os::unix::fs::symlink(Path::new("../../..").join(device), folder.join("device")).unwrap();
        }
    }

    #[test]
    fn without_sys_the_queues_are_unknown_until_it_is_mounted() {
        let root = root_with(TABLE);
        let mut source = Interrupts::new();
        for _ in 0..2 {
            let (why, values) = sampled(&mut source, root.path());
            assert_eq!(why.unwrap(), "cannot read /sys/class/net: No such file or directory (os error 2)");
            assert_eq!(values, [], "which is no 0");
        }
        add_interface(root.path(), "eth0", Some("virtio2"));
        let (why, values) = sampled(&mut source, root.path());
        assert_eq!(why, None);
        assert_eq!(values[0], (host::QUEUE_INTERRUPTS, "eth0 irq38 virtio2-input.0".to_owned(), 5));
    }

    #[test]
    fn a_card_that_no_row_names_is_told_and_interfaces_without_a_device_are_not() {
        let root = root_with(TABLE);
        add_interface(root.path(), "lo", None);
        add_interface(root.path(), "veth0", None);
        assert_eq!(sampled(&mut Interrupts::new(), root.path()), (None, Vec::new()));
        add_interface(root.path(), "eth1", Some("a5f1-guid"));
        let mut source = Interrupts::new();
        for _ in 0..2 {
            let why = "no row of /proc/interrupts names eth1 or its device a5f1-guid";
            assert_eq!(sampled(&mut source, root.path()), (Some(why.to_owned()), Vec::new()));
        }
        fs::write(root.path().join(INTERFACES).join("eth1/operstate"), "down\n").unwrap();
        assert_eq!(sampled(&mut Interrupts::new(), root.path()), (None, Vec::new()), "a card that is down has none");
    }

    #[test]
    fn an_empty_table_is_told() {
        let root = root_with("");
        let why = "/proc/interrupts has no column of a core";
        assert_eq!(sampled(&mut Interrupts::new(), root.path()), (Some(why.to_owned()), Vec::new()));
    }

    #[test]
    fn the_core_of_a_queue_is_the_one_that_took_most_of_the_newest_interrupts() {
        let mut queue =
            QueueInterrupt::of(7, b" 1 1 PCI-MSI 1-edge eth0", 2, &[("eth0".to_owned(), Vec::new())]).unwrap();
        let cores = [Some(0), Some(2)];
        assert!(queue.follow(b" 4294967290 5 PCI-MSI 1-edge eth0", &cores));
        assert_eq!((queue.total, queue.core), (4_294_967_295, 0));
        assert!(queue.follow(b" 4 9 PCI-MSI 1-edge eth0", &cores), "a count of 32 bits goes on where it wraps");
        assert_eq!((queue.total, queue.core), (4_294_967_295 + 10 + 4, 0));
        assert!(queue.follow(b" 4 12 PCI-MSI 1-edge eth0", &cores));
        assert_eq!(queue.core, 2);
        assert!(queue.follow(b" 4 12 PCI-MSI 1-edge eth0", &cores));
        assert_eq!(queue.core, 2, "without a new one it stays");
        assert!(!queue.follow(b" 4 eth0", &cores), "a row that was cut off is not read");
        assert!(!queue.follow(b" 4 12 PCI-MSI 1-edge eth7", &cores), "the row of another device");
    }
}
