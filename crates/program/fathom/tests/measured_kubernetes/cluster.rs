//! A Kubernetes cluster of three nodes, n1 to n3, with an API that the test reaches in the cluster's network namespace.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fathom_sys::{
    netlink::namespace::NetNs,
    process::{ParentBond, ProcessPlace, ProcessSpec},
};

use crate::test_bed::{ProgramResult, RunningProgram, TestBed, lacks_root, tree, until};

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";
/// The control groups of pods, which outlive a containerd.
const POD_GROUP: &str = "k8s.io";

pub(crate) struct Cluster {
    pub(crate) stage: TestBed,
    net: NetNs,
    parts: PathBuf,
    holder: Child,
}

/// Returns the folder of the scripts.
fn scripts() -> PathBuf {
    tree().join("crates/program/fathom/tests/measured_kubernetes/cluster")
}

/// Runs a script to its end and returns what it printed.
fn script(name: &str, words: &[&Path]) -> String {
    let output = Command::new(scripts().join(name)).args(words).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{name}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the control groups of pods below a folder, inner ones first.
fn pod_groups(folder: &Path, is_inside: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let is_one = is_inside || entry.file_name() == POD_GROUP;
            pod_groups(&entry.path(), is_one, found);
            found.extend(is_one.then(|| entry.path()));
        }
    }
}

fn all_pod_groups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    pod_groups(Path::new(GROUPS), false, &mut found);
    found
}

impl Cluster {
    /// Starts the cluster and waits until its nodes are ready; none without root or without its programs.
    pub(crate) fn start() -> Option<Self> {
        if lacks_root() {
            return None;
        }
        let parts = PathBuf::from(script("build.sh", &[Path::new("--where")]));
        if !parts.join("bin/kubectl").exists() {
            // It takes five minutes to build, so CI has it only where it is cached.
            fathom_testkit::skip_everywhere("needs the Kubernetes of the tests: make test-kubernetes builds it");
            return None;
        }
        let stage = TestBed::new();
        if !all_pod_groups().is_empty() {
            fathom_testkit::skip_everywhere("this machine runs pods of its own");
            return None;
        }
        let images = stage.path("images.tar");
        script("image.sh", &[&parts.join("bin/pause"), stage.program(), &images]);
        let folder = stage.path("cluster");
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private"]);
        command.arg(scripts().join("run.sh")).args([&parts, &folder, &images]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(fs::File::create(folder.join("run.log")).unwrap());
        let holder =
            ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn().unwrap();
        let mut cluster = Self { stage, net: NetNs::current().unwrap(), parts, holder };
        until(|| {
            let ended = cluster.holder.try_wait().unwrap();
            assert!(ended.is_none(), "the cluster ended: {ended:?}");
            folder.join("ready").exists().then_some(())
        });
        cluster.net = NetNs::open(format!("/proc/{}/ns/net", cluster.init())).unwrap();
        Some(cluster)
    }

    /// Returns the pid of the first process inside.
    fn init(&self) -> u32 {
        let holder = self.holder.id();
        fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).unwrap().trim().parse().unwrap()
    }

    /// Writes an inventory of `sut` on n1, `b2` and `b3`; `cluster` has further lines of `[kubernetes]`.
    pub(crate) fn inventory(&self, name: &str, cluster: &str) {
        self.inventory_of(name, "localhost/fathom:test", "n[2-3]", cluster);
    }

    /// As [`Self::inventory`], with another image and other nodes of the companions.
    pub(crate) fn inventory_of(&self, name: &str, image: &str, nodes: &str, cluster: &str) {
        let rights = "capabilities = [\"NET_ADMIN\", \"NET_RAW\"]";
        let text = format!(
            "[kubernetes]\nimage = \"{image}\"\npull = \"Never\"\n{rights}\n{cluster}\n[defaults]\nlauncher = \"kubernetes\"\n\
             [hosts.sut]\ncontrol = \"n1\"\nroles = [\"sut\"]\n[hosts.\"b[2-3]\"]\ncontrol = \"{nodes}\"\nroles = [\"companion\"]\n"
        );
        fs::write(self.stage.path(name), text).unwrap();
    }

    fn command(&self, user: &str, words: &[&str]) -> Command {
        let path = format!("{}:{}", self.parts.join("bin").display(), env::var("PATH").unwrap());
        let kubeconfig = self.stage.path(&format!("cluster/{user}.kubeconfig"));
        let mut command = self.stage.command("env");
        command.arg("--default-signal=INT").args(words).env("PATH", path).env("KUBECONFIG", kubeconfig);
        command
    }

    fn spawn(&self, command: Command) -> RunningProgram {
        self.net.enter_with(|| self.stage.spawn(command)).unwrap()
    }

    /// Starts fathom as the administrator of the cluster.
    pub(crate) fn launch(&self, words: &[&str]) -> RunningProgram {
        self.spawn(self.command("admin", &[&[self.program()], words].concat()))
    }

    /// Runs fathom as the administrator of the cluster.
    pub(crate) fn fathom(&self, words: &[&str]) -> ProgramResult {
        self.launch(words).ends()
    }

    /// Runs fathom as a user who has only the rights that were given to it.
    pub(crate) fn fathom_as_bench(&self, words: &[&str]) -> ProgramResult {
        self.spawn(self.command("bench", &[&[self.program()], words].concat())).ends()
    }

    /// Runs fathom with other variables.
    pub(crate) fn fathom_with(&self, variables: &[&str], words: &[&str]) -> ProgramResult {
        self.spawn(self.command("admin", &[variables, &[self.program()], words].concat())).ends()
    }

    fn program(&self) -> &str {
        self.stage.program().to_str().unwrap()
    }

    /// Runs kubectl as the administrator.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        self.spawn(self.command("admin", &[&["kubectl"], words].concat())).ends().succeeded().stdout
    }

    /// Returns what kubectl prints, however it ends.
    pub(crate) fn kubectl_says(&self, words: &[&str]) -> String {
        self.spawn(self.command("admin", &[&["kubectl"], words].concat())).ends().stdout
    }

    /// Returns the pids of all agents in pods.
    pub(crate) fn agents() -> Vec<u32> {
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let is_agent = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == b"--await-controller")
        };
        pids.filter(is_agent).collect()
    }

    /// Waits until there are neither Jobs nor pods nor agents, and checks that no journal is left.
    pub(crate) fn is_clean(&self) {
        until(|| self.kubectl(&["get", "jobs,pods", "--all-namespaces", "--output=name"]).is_empty().then_some(()));
        assert_eq!(Self::agents(), [0; 0]);
        assert_eq!(self.stage.journals(), [""; 0]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.stage.path("cluster/run.log")).unwrap_or_default();
            eprintln!("the cluster said: {log}");
        }
        // Its first process ends with it, and everything in the namespaces with that.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        until(|| {
            // A group can be removed once its processes have ended.
            for group in all_pod_groups() {
                drop(fs::remove_dir(group));
            }
            all_pod_groups().is_empty().then_some(())
        });
    }
}
