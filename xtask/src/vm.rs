//! A virtual machine for features that the host kernel lacks: Debian's kernel under QEMU, with a test program as its only payload.
//!
//! It has no disk and no network: everything is in the archive that the kernel unpacks into memory. The tests assert only counts and
//! texts, because rates in an emulated machine mean nothing.

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

/// The package that depends on the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The kernel modules to load, in order; none depends on another.
const MODULES: [&str; 4] = [
    "kernel/drivers/net/veth.ko",
    "kernel/drivers/net/dummy.ko",
    "kernel/net/sched/sch_netem.ko",
    "kernel/net/core/pktgen.ko",
];
/// The test programs of `packet` and of `fathom`.
const TESTS: [&str; 3] = ["pktgen", "netem", "wall_clock"];
/// The external tools that the tests call.
const TOOLS: [&str; 2] = ["tc", "ip"];
/// The time limit of the whole machine: with seven times as much other work as there are processors, it took a minute and a half.
const RUN_TIMEOUT: Duration = Duration::from_mins(5);
/// The time limit for downloading its kernel: about 30 MB.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_mins(3);
/// The marker that the machine prints when a program has exited, with its exit code.
const ENDED_MARKER: &str = "machine-ended";

/// A program for the machine: the test program or the program that it calls.
#[derive(Debug)]
struct VmProgram {
    name: String,
    program: PathBuf,
}

/// Runs the tests of features that most kernels lack in the virtual machine.
pub(crate) fn test_vm(root: &Path) -> anyhow::Result<Vec<String>> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("machine");
    fs::create_dir_all(&folder)?;
    let kernel = match require_tools().and_then(|()| unpacked_kernel(&folder)) {
        Ok(kernel) => kernel,
        // In CI, a test that cannot run counts as failed.
        Err(error) if std::env::var_os("CI").is_some() => return Err(error),
        Err(error) => {
            eprintln!("SKIPPED: {error:#}");
            return Ok(Vec::new());
        }
    };
    let payloads = build(root)?;
    let archive = folder.join("initramfs");
    fs::write(&archive, contents(&payloads, &kernel)?)?;
    let said = boot(&kernel.join("vmlinuz"), &archive)?;
    Ok(failures(&said, &payloads))
}

/// Checks for the required tools, and for x86-64, because the machine runs programs built here.
fn require_tools() -> anyhow::Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the machine of software is an x86-64, and this one is not");
    let tools = ["qemu-system-x86_64", "busybox", "apt-get", "dpkg-deb", "tar", "tc"];
    let missing: Vec<_> = tools.into_iter().filter(|tool| which(tool).is_err()).collect();
    ensure!(
        missing.is_empty(),
        "a machine of software needs {} (on Debian: apt-get install qemu-system-x86 busybox-static iproute2)",
        missing.join(", ")
    );
    Ok(())
}

/// Returns the failures inside the machine, one line each.
fn failures(said: &str, payloads: &[VmProgram]) -> Vec<String> {
    let ended = |payload: &&VmProgram| !said.contains(&format!("{ENDED_MARKER} {} 0", payload.name));
    let tests = payloads.iter().filter(|payload| payload.is_test());
    let mut faults: Vec<String> =
        tests.filter(ended).map(|payload| format!("{} did not end well", payload.name)).collect();
    faults.extend(said.lines().filter(|line| line.contains("SKIPPED")).map(str::to_owned));
    if !faults.is_empty() {
        faults.insert(0, said.to_owned());
    }
    println!(
        "{}",
        said.lines()
            .filter(|line| line.starts_with("test result") || line.contains("Linux version"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    faults
}

fn which(tool: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).map(|folder| folder.join(tool));
    found.into_iter().find(|path| path.exists()).with_context(|| format!("there is no {tool}"))
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a folder with the kernel and its modules; the package is kept, because Debian removes old ones.
fn unpacked_kernel(folder: &Path) -> anyhow::Result<PathBuf> {
    let package = newest_kernel(folder)?;
    let unpacked = folder.join(&package);
    if unpacked.join("vmlinuz").exists() {
        return Ok(unpacked);
    }
    let kept = |folder: &Path| -> anyhow::Result<Option<PathBuf>> {
        let files = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        let begins = format!("{package}_");
        Ok(files
            .into_iter()
            .find(|file| file.file_name().to_string_lossy().starts_with(&begins))
            .map(|file| file.path()))
    };
    if kept(folder)?.is_none() {
        download(&package, folder)?;
    }
    let archive = kept(folder)?.context("apt-get has downloaded nothing")?;
    let release = package.trim_start_matches("linux-image-");
    let (image, modules) = (format!("./boot/vmlinuz-{release}"), format!("./lib/modules/{release}"));
    let wanted = MODULES.iter().map(|module| format!("{modules}/{module}")).chain([image.clone()]);
    let raw = folder.join("unpacking");
    fs::create_dir_all(&raw)?;
    let mut package = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&archive).stdout(Stdio::piped()).spawn()?;
    let stream = package.stdout.take().context("a pipe was asked for")?;
    output(Command::new("tar").arg("-x").arg("-C").arg(&raw).args(wanted).stdin(stream))?;
    ensure!(package.wait()?.success(), "cannot read {}", archive.display());
    fs::create_dir_all(&unpacked)?;
    for module in MODULES {
        let name = Path::new(module).file_name().context("a module has a name")?;
        fs::rename(raw.join(&modules).join(module), unpacked.join(name))?;
    }
    fs::rename(raw.join(image), unpacked.join("vmlinuz"))?;
    fs::remove_dir_all(raw)?;
    Ok(unpacked)
}

/// Downloads a package with apt, or fails within a few minutes.
fn download(package: &str, folder: &Path) -> anyhow::Result<()> {
    let mut apt = Command::new("timeout");
    apt.arg(DOWNLOAD_TIMEOUT.as_secs().to_string()).args([
        "apt-get",
        "-qq",
        "-o",
        "Acquire::Retries=2",
        "-o",
        "APT::Sandbox::User=root",
        "download",
    ]);
    output(apt.arg(package).current_dir(folder)).map(drop).with_context(|| {
        format!("cannot have Debian's kernel: apt-get download {package} (apt-get update; is there a way to a mirror?)")
    })
}

/// Returns the name of the newest kernel package: from the package list, or the newest that was unpacked before.
fn newest_kernel(folder: &Path) -> anyhow::Result<String> {
    let listed = output(Command::new("apt-cache").args(["depends", KERNEL])).unwrap_or_default();
    let name = listed.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned);
    let kept = || {
        let files = fs::read_dir(folder).ok()?.filter_map(|file| file.ok()?.file_name().into_string().ok());
        files.filter(|name| name.starts_with("linux-image-") && !name.contains('_')).max()
    };
    name.or_else(kept).with_context(|| format!("apt-cache knows no {KERNEL}: apt-get update"))
}

/// Builds the test program and the program that it calls.
///
/// Both are built like `cargo test --workspace` does, with the same features, so nothing is rebuilt after that. Cargo builds the called
/// program because fathom's own test `measured_program` needs it. What `cargo run` says of this program in the environment is left out, because
/// the build script of `ring` depends on it: all that needs it would be built again, and once more by the next `cargo test`.
fn build(root: &Path) -> anyhow::Result<Vec<VmProgram>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tests = TESTS.iter().chain(&["measured_program"]).flat_map(|test| ["--test", test]);
    let words: Vec<&str> =
        ["test", "--workspace", "--no-run", "--message-format", "json"].into_iter().chain(tests).collect();
    let mut command = Command::new(cargo);
    let of_this_package = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|begin| name.starts_with(begin));
    for name in std::env::vars().map(|(name, _)| name).filter(|name| of_this_package(name)) {
        command.env_remove(name);
    }
    let text = output(command.args(&words).arg("--quiet").current_dir(root))?;
    let mut payloads = Vec::new();
    for line in text.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let (Some(program), Some(name)) = (message["executable"].as_str(), message["target"]["name"].as_str()) else {
            continue;
        };
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        if (kind, name) == ("bin", "fathom") || (kind == "test" && TESTS.contains(&name)) {
            payloads.push(VmProgram { name: format!("{kind}-{name}"), program: program.into() });
        }
    }
    let n_programs = TESTS.len() + 1;
    ensure!(
        payloads.len() == n_programs,
        "cargo {} has built {} of {n_programs} programs",
        words.join(" "),
        payloads.len()
    );
    Ok(payloads)
}

impl VmProgram {
    fn is_test(&self) -> bool {
        self.name.starts_with("test-")
    }
}

/// The archive that the kernel unpacks: programs at their paths on this host, with their shared libraries.
fn contents(payloads: &[VmProgram], kernel: &Path) -> anyhow::Result<Vec<u8>> {
    let mut archive = CpioArchive::default();
    let busybox = which("busybox")?;
    archive.file("/bin/busybox", &fs::read(busybox)?, 0o755);
    let tools = TOOLS.iter().map(|tool| which(tool)).collect::<Result<Vec<_>, _>>()?;
    for program in tools.iter().chain(payloads.iter().map(|payload| &payload.program)) {
        archive.program(program)?;
    }
    for module in MODULES {
        let name = Path::new(module).file_name().context("a module has a name")?.to_string_lossy().into_owned();
        archive.file(&format!("/modules/{name}"), &fs::read(kernel.join(&name))?, 0o644);
    }
    archive.file("/init", init(payloads).as_bytes(), 0o755);
    for folder in ["/proc", "/sys", "/dev", "/tmp"] {
        archive.folder(folder);
    }
    Ok(archive.finish())
}

/// The init script of the machine: load modules, run tests, print each exit code, power off.
///
/// Its processors are slow and shared by two tests at a time, whose busy threads delay the others, so a veth needs room for more than the
/// default of 1000 packets.
fn init(payloads: &[VmProgram]) -> String {
    let modules =
        MODULES.map(|module| format!("insmod /modules/{}", module.rsplit('/').next().unwrap_or(module))).join("\n");
    let run = |payload: &VmProgram| {
        format!("{} --test-threads=2\necho {ENDED_MARKER} {} $?\n", payload.program.display(), payload.name)
    };
    let tests: String = payloads.iter().filter(|payload| payload.is_test()).map(run).collect();
    let program = payloads.iter().find(|payload| !payload.is_test());
    let program = program.map(|program| format!("export FATHOM_PROGRAM={}\n", program.program.display()));
    let program = program.unwrap_or_default();
    format!(
        "#!/bin/busybox sh\nexport PATH=/usr/sbin:/sbin:/usr/bin:/bin HOME=/tmp CI=true FATHOM_TEST_VM=1\n/bin/busybox --install -s /bin\n\
         mount -t proc proc /proc\nmount -t sysfs sys /sys\nmount -t devtmpfs dev /dev\n{modules}\necho 100000 > /proc/sys/net/core/netdev_max_backlog\ncat /proc/version\n\
         {program}{tests}poweroff -f\n"
    )
}

/// Runs the machine until it powers off, and returns its output.
fn boot(kernel: &Path, archive: &Path) -> anyhow::Result<String> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "1024",
        "-nodefaults",
        "-no-reboot",
        "-nographic",
        "-serial",
        "stdio",
    ]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(archive);
    // On a busy host the emulated timer may be too late for the check of the kernel, which then stops (`no_timer_check`).
    command.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check"]);
    let mut machine =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start qemu-system-x86_64")?;
    let mut console = machine.stdout.take().context("a pipe was asked for")?;
    let (said, heard) = mpsc::channel();
    thread::spawn(move || {
        let mut part = [0; 4096];
        // The receiver is gone if the machine took too long.
        while console.read(&mut part).is_ok_and(|n| n > 0 && said.send(part[..n].to_vec()).is_ok()) {}
    });
    let (began, mut text) = (Instant::now(), Vec::new());
    let ending = loop {
        match heard.recv_timeout(RUN_TIMEOUT.saturating_sub(began.elapsed())) {
            Ok(part) => text.extend_from_slice(&part),
            Err(ending) => break ending,
        }
    };
    end(&mut machine)?;
    let text = String::from_utf8_lossy(&text).replace('\r', "");
    ensure!(
        ending == RecvTimeoutError::Disconnected,
        "the machine did not switch itself off within {RUN_TIMEOUT:?}:\n{text}"
    );
    Ok(text)
}

fn end(machine: &mut Child) -> anyhow::Result<()> {
    if machine.try_wait()?.is_none() {
        machine.kill()?;
    }
    machine.wait()?;
    Ok(())
}

/// An archive in the kernel's initramfs format (`newc`, Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Debug, Default)]
struct CpioArchive {
    bytes: Vec<u8>,
    entries: BTreeSet<String>,
}

/// The type bits of an entry, above its permissions (`S_IFDIR`, `S_IFREG`).
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

impl CpioArchive {
    fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER | 0o755, &[]);
    }

    fn file(&mut self, path: &str, bytes: &[u8], permissions: u32) {
        let parents: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        for parent in parents.into_iter().rev().filter(|parent| *parent != Path::new("/")) {
            self.folder(&parent.to_string_lossy());
        }
        self.entry(path, FILE | permissions, bytes);
    }

    /// Adds a program at its path on this host, and its shared libraries.
    fn program(&mut self, path: &Path) -> anyhow::Result<()> {
        let linked = output(Command::new("ldd").arg(path))?;
        let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain([path.to_string_lossy().as_ref()]) {
            self.file(file, &fs::read(file).with_context(|| format!("cannot read {file}"))?, 0o755);
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        if !self.entries.insert(path.to_owned()) {
            return;
        }
        let name = format!("{}\0", path.trim_start_matches('/'));
        // Inode number, mode, user, group, links, time, length, four device numbers, length of the name, checksum.
        let number = self.entries.len();
        let fields = [number, usize::try_from(mode).unwrap_or(0), 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len(), 0];
        let header = fields.map(|field| format!("{field:08x}")).concat();
        self.bytes.extend_from_slice(b"070701");
        for part in [[header.as_bytes(), name.as_bytes()].concat().as_slice(), content] {
            self.bytes.extend_from_slice(part);
            // Names and contents are aligned to four bytes.
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("/TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_every_folder_before_what_is_in_it() {
        let mut archive = CpioArchive::default();
        archive.file("/a/b/c", b"12345", 0o644);
        archive.file("/a/d", b"", 0o755);
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let places: Vec<_> =
            ["a\0", "a/b\0", "a/b/c\0", "12345", "a/d\0", "TRAILER!!!\0"].iter().map(|name| text.find(name)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
        assert!(bytes.len().is_multiple_of(4));
        assert_eq!(text.matches("070701").count(), 5);
    }
}
