//! Checks the commands that findings suggest: the program, its subcommand, and the names of kernel settings.
//!
//! Every finding that a test of this crate produces is checked, and so is every command in the texts of the rules.

use std::{fs, path::Path};

/// A program that findings may suggest.
struct Program {
    name: &'static str,
    /// The options that are in use, each with its value in one word if it has one.
    options: &'static [&'static str],
    /// How the words that are no options may begin; an empty list is a program without such words.
    words: &'static [&'static str],
}

/// All programs that findings suggest, with what is used of them: ip(8), tc(8), ss(8), ethtool(8), nft(8), sysctl(8), and so on.
const PROGRAMS: &[Program] = &[
    Program { name: "arping", options: &["-c", "-I"], words: &["5 *"] },
    Program { name: "bpftool", options: &[], words: &["net show"] },
    Program { name: "cat", options: &[], words: &["/proc/", "/sys/"] },
    Program { name: "conntrack", options: &["-S"], words: &[] },
    Program { name: "dmesg", options: &[], words: &["| grep oom-kill"] },
    Program { name: "echo", options: &[], words: &["* | tee /sys/class/net/"] },
    Program { name: "ethtool", options: &["-G", "-K", "-L", "-m", "-S", "-x"], words: &["*"] },
    Program {
        name: "fathom",
        options: &["*"],
        words: &[
            "app run",
            "app try",
            "calibrate",
            "evaluate",
            "http",
            "packet",
            "probe",
            "run",
            "serve",
            "tcp",
            "udp",
        ],
    },
    Program { name: "grep", options: &[], words: &[". /proc/irq/", ". /sys/"] },
    Program {
        name: "ip",
        options: &["-6", "-d", "-s", "-ts"],
        words: &[
            "address",
            "link",
            "link show",
            "link set * up",
            "monitor link route neigh",
            "neigh",
            "neigh show nud failed",
            "route",
            "route get",
        ],
    },
    Program { name: "ndisc6", options: &["-m"], words: &["*"] },
    Program { name: "nft", options: &["-a", "--handle"], words: &["list ruleset"] },
    Program { name: "nstat", options: &["-az"], words: &["Ip*", "TcpExtTCPAbort*"] },
    Program { name: "perf", options: &["-C"], words: &["top *"] },
    Program {
        name: "ss",
        options: &["-ltn", "-ltun", "-lun", "-tin", "-tn", "-tnm", "-uam"],
        words: &["state established", "state syn-sent", "state syn-recv"],
    },
    Program { name: "sysctl", options: &["-w"], words: &["net."] },
    Program {
        name: "tc",
        options: &["-s"],
        words: &[
            "class show",
            "qdisc show",
            "qdisc replace dev * root pfifo limit *",
            "filter show dev * ingress",
            "filter show dev * egress",
        ],
    },
    Program { name: "tcpdump", options: &["-c", "-nevi", "-ni"], words: &["any tcp *", "any *", "* 200 udp"] },
    Program { name: "top", options: &["-H", "-p"], words: &["*"] },
    Program { name: "ulimit", options: &["-Hn"], words: &[] },
    Program { name: "vmstat", options: &[], words: &["1"] },
];

/// Stands for a word that a rule puts into a command.
const PLACEHOLDER: &str = "□";

/// Texts of rules that begin with the name of a program and are no commands.
const NO_COMMANDS: [&str; 2] = ["fathom itself ", "tc filter"];

/// Returns what is wrong with a command line, or with one of several between semicolons.
pub(crate) fn fault_of(line: &str) -> Option<String> {
    line.split("; ").find_map(|command| {
        let words = words_of(command);
        let (name, rest) = words.split_first()?;
        let Some(program) = PROGRAMS.iter().find(|program| program.name == name) else {
            return Some(format!("`{line}`: no program {name} is known"));
        };
        program.fault_of(rest).map(|fault| format!("`{line}`: {fault}"))
    })
}

impl Program {
    fn fault_of(&self, words: &[String]) -> Option<String> {
        let (options, rest): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.starts_with('-'));
        let is_known = |option: &&&String| self.options.contains(&"*") || self.options.contains(&option.as_str());
        if let Some(option) = options.iter().find(|option| !is_known(option)) {
            return Some(format!("{} has no option {option} here", self.name));
        }
        let rest: Vec<&str> = rest.into_iter().map(String::as_str).collect();
        if !rest.is_empty() && !self.words.iter().any(|form| begins(&rest, form)) {
            return Some(format!("{} does not begin with {:?}", rest.join(" "), self.words));
        }
        if self.name == "sysctl" { rest.iter().find_map(|setting| fault_of_setting(setting)) } else { None }
    }
}

/// Returns true if words begin with a form, in which `*` is any word; the last word of a form may be the beginning of one.
fn begins(words: &[&str], form: &str) -> bool {
    let form: Vec<&str> = form.split(' ').collect();
    let is_like = |(place, (word, wanted)): (usize, (&&str, &&str))| {
        let is_path = place + 1 == form.len() && wanted.ends_with(['/', '.']) && wanted.len() > 1;
        *wanted == "*" || word.starts_with(PLACEHOLDER) || word == wanted || (is_path && word.starts_with(wanted))
    };
    words.len() >= form.len() && words.iter().zip(&form).enumerate().all(is_like)
}

/// All settings that findings suggest; `*` is the name of an interface.
const SETTINGS: &[&str] = &[
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.rmem_default",
    "net.ipv4.conf.*.rp_filter",
    "net.ipv4.conf.all.log_martians",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.ipv6.neigh.default.gc_thresh3",
    "net.netfilter.nf_conntrack_max",
];

/// Returns what is wrong with a setting, such as `net.ipv4.tcp_mem=1 2 3`.
fn fault_of_setting(setting: &str) -> Option<String> {
    let name = setting.split('=').next()?;
    let is_like = |known: &&&str| {
        let (name, known) = (name.split('.'), known.split('.'));
        name.clone().count() == known.clone().count()
            && name.zip(known).all(|(word, wanted)| wanted == "*" || word == wanted)
    };
    (name != PLACEHOLDER && !SETTINGS.iter().any(|known| is_like(&known)))
        .then(|| format!("no setting {name} is known"))
}

/// Returns the words of a command; quotes keep words together.
fn words_of(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (_, Some(open)) if c == open => quote = None,
            (' ', None) => words.push(String::new()),
            _ => words.last_mut().expect("there is always a word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the string literals of a source text, with the [`PLACEHOLDER`] in the places of a format.
fn literals_of(source: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut literal: Option<String> = None;
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match (&mut literal, c) {
                (Some(text), '\\') => text.extend(chars.next()),
                (Some(_), '"') => all.extend(literal.take()),
                (Some(text), '{') => {
                    let _placeholder = chars.by_ref().take_while(|c| *c != '}').count();
                    text.push_str(PLACEHOLDER);
                }
                (Some(text), c) => text.push(c),
                (None, '"') => literal = Some(String::new()),
                (None, _) => {}
            }
        }
    }
    all
}

#[test]
fn the_commands_in_the_texts_of_all_rules_are_commands() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/findings");
    let mut n_commands = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let source = fs::read_to_string(&path).unwrap();
        let rules = source.split("#[cfg(test)]\nmod tests").next().unwrap();
        for literal in literals_of(rules) {
            let is_program =
                |program: &Program| literal.split(' ').next() == Some(program.name) && literal.contains(' ');
            let is_text = NO_COMMANDS.iter().any(|text| literal.starts_with(text));
            if PROGRAMS.iter().any(is_program) && !is_text {
                assert_eq!(fault_of(&literal), None, "{}", path.display());
                n_commands += 1;
            }
        }
    }
    assert!(n_commands > 50, "only {n_commands} commands were found in the texts");
}

#[test]
fn this_kernel_has_the_settings() {
    let sys = Path::new("/proc/sys");
    // Other network namespaces do not show all of them, and only kernels that track connections have those of `netfilter`.
    if !sys.join("net/core/netdev_max_backlog").exists() {
        fathom_testkit::skip_everywhere("only the first network namespace shows all settings");
        return;
    }
    for name in SETTINGS.iter().filter(|name| !name.starts_with("net.netfilter.") || sys.join("net/netfilter").exists())
    {
        let path = name.replace('*', "all").replace('.', "/");
        assert!(sys.join(&path).exists(), "{path}");
    }
}

#[test]
fn a_command_with_a_slip_of_the_pen_is_found() {
    for right in [
        "ip -s -s link show eth0",
        "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"",
        "sysctl -w net.ipv4.conf.eth0.rp_filter=2",
        "tc -s qdisc show dev eth0; ip -s link show dev eth0",
        "ss -tn state syn-sent",
        "tcpdump -nevi eth0 -c 200 udp and src 192.0.2.1",
    ] {
        assert_eq!(fault_of(right), None);
    }
    for wrong in [
        "ipp link show",
        "ip lnik show eth0",
        "sysctl -w net.core.netdev_bugdet=600",
        "sysctl kernel.panic",
        "ss -ltx",
        "tc -s qdisc show dev eth0; ip -s lnk",
        "fathom prob 10.0.0.1",
        "look at the other end",
    ] {
        assert!(fault_of(wrong).is_some(), "{wrong}");
    }
}
