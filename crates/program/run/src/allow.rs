//! The targets that this machine may load besides itself, its labs and hosts with a key.
//!
//! They come from `--allow`, `FATHOM_ALLOW`, the allow file and, at a terminal, a prompt. Names are resolved once, when a run starts.

use std::{
    cell::{OnceCell, RefCell},
    env, fs, io,
    io::{IsTerminal as _, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::Context as _;
use fathom_engine::{Consent, NamedTarget};
use fathom_model::plan::HostReach;
use fathom_sys::policy::{Network, Policy};

use crate::{
    exit::{Exit, UserError},
    files::config_folder,
    target,
};

/// The size limit of the allow file: longer than any list written by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The targets that the user has allowed. Clones share the answers to prompts.
#[derive(Debug, Clone, Default)]
pub struct AllowList(Rc<AllowListState>);

#[derive(Debug, Default)]
struct AllowListState {
    /// The command that repeats the run, for the hint that allows its target.
    command: String,
    networks: Vec<Network>,
    names: Vec<String>,
    /// The addresses of the names, resolved when nothing else allows a target.
    resolved_names: OnceCell<Vec<Network>>,
    /// Invalid lines, each with its file and line number.
    bad_lines: Vec<String>,
    /// The networks that the user confirmed at a prompt.
    confirmed: RefCell<Vec<Network>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowEntry {
    Network(Network),
    Name(String),
}

impl AllowEntry {
    /// Parses an address, a network or a host name.
    pub fn read(word: &str) -> Option<Self> {
        if let Ok(network) = word.parse() {
            return Some(Self::Network(network));
        }
        let is_label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // A name that ends in a number is a mistyped address (RFC 1123 2.1).
        let ends_in_number =
            word.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
        let is_name = word.len() <= 253 && word.split('.').all(is_label) && !ends_in_number;
        is_name.then(|| Self::Name(word.to_ascii_lowercase()))
    }
}

impl std::fmt::Display for AllowEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // A network of one address is written as that address.
            Self::Network(network) => f.write_str(&network_text(network)),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn network_text(network: &Network) -> String {
    let text = network.to_string();
    let single = text.strip_suffix("/32").filter(|address| !address.contains(':')).or(text.strip_suffix("/128"));
    single.map_or_else(|| text.clone(), str::to_owned)
}

/// Returns the paths of the allow file and of its older TOML form.
pub fn files() -> Option<[PathBuf; 2]> {
    let folder = config_folder()?;
    Some([folder.join("allow"), folder.join("allow.toml")])
}

/// The file and line number of an entry, and the entry or its error.
pub type AllowLine = (String, Result<AllowEntry, String>);

/// The older TOML form of the allow file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LegacyAllowFile {
    allow: Vec<String>,
}

/// Parses the text of an allow file: one entry per line with `#` comments, or the older TOML form.
pub fn read_lines(text: &str, path: &Path) -> Vec<AllowLine> {
    let line = |(n, word): (usize, &str)| {
        let place = format!("{}:{n}", path.display());
        let entry = AllowEntry::read(word).ok_or_else(|| format!("`{word}` is not an address, a network or a name"));
        (place, entry)
    };
    if let Ok(older) = toml::from_str::<LegacyAllowFile>(text) {
        return older.allow.iter().enumerate().map(|(idx, word)| line((idx + 1, word))).collect();
    }
    let words = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    (1..).zip(words).filter(|(_, word)| !word.is_empty()).map(line).collect()
}

/// Reads a file. Returns none if it does not exist.
pub fn read_file(path: &Path) -> anyhow::Result<Option<String>> {
    use io::Read as _;
    let cannot = || format!("cannot read {}", path.display());
    let mut text = String::new();
    match fs::File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).with_context(cannot)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(cannot),
    };
    Ok(Some(text))
}

/// Appends an entry to the allow file and returns the path of the file.
pub fn append(entry: &AllowEntry) -> anyhow::Result<PathBuf> {
    let [path, _] =
        files().context("the place of the allow file is unknown: neither HOME nor XDG_CONFIG_HOME is set")?;
    let folder = path.parent().expect("the path was made from a folder");
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let before = read_file(&path)?.unwrap_or_default();
    let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    replace(&path, &format!("{before}{gap}{entry}\n"))?;
    Ok(path)
}

/// Replaces a file atomically.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().expect("the path was made from a folder");
    let cannot = || format!("cannot write {}", path.display());
    let mut draft = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
    draft.write_all(text.as_bytes()).with_context(cannot)?;
    draft.persist(path).with_context(cannot)?;
    Ok(())
}

impl AllowList {
    /// Loads `--allow`, `FATHOM_ALLOW` and the allow file. `command` repeats the run.
    pub fn load<'a>(given: impl Iterator<Item = &'a String>, command: String) -> Result<Self, UserError> {
        let mut granted = AllowListState { command, ..AllowListState::default() };
        for word in given.flat_map(|words| words.split(',')) {
            let entry = AllowEntry::read(word).ok_or_else(|| {
                UserError::new(Exit::Usage, format!("--allow: `{word}` is not an address, a network or a name"))
                    .with_line("use", "--allow 10.0.0.2, --allow 10.0.0.0/24 or --allow NAME")
            })?;
            if let AllowEntry::Name(name) = &entry {
                // A mistyped name on the command line is an error right away.
                granted.networks.extend(target::resolve(name)?.into_iter().map(Network::from));
            }
            granted.add(entry);
        }
        let list = env::var("FATHOM_ALLOW").unwrap_or_default();
        let words = list.split([',', ' ']).filter(|word| !word.is_empty());
        let lines = words.flat_map(|word| read_lines(word, Path::new("FATHOM_ALLOW")));
        let files = files().into_iter().flatten();
        let lines = lines.chain(files.flat_map(|path| match read_file(&path) {
            Ok(text) => read_lines(&text.unwrap_or_default(), &path),
            Err(error) => vec![(path.display().to_string(), Err(format!("{error:#}")))],
        }));
        for (place, entry) in lines.collect::<Vec<_>>() {
            match entry {
                Ok(entry) => granted.add(entry),
                Err(why) => granted.bad_lines.push(format!("{place}: {why}")),
            }
        }
        Ok(Self(Rc::new(granted)))
    }

    /// Returns all allowed networks as an option value, separated by commas.
    pub fn list(&self) -> String {
        let answered = self.0.confirmed.borrow();
        let all = self.0.networks.iter().chain(self.0.resolved_names()).chain(answered.iter());
        all.map(Network::to_string).collect::<Vec<_>>().join(",")
    }

    /// Rejects addresses that the user has not allowed. `shown` is the user's name for them.
    pub fn check(&self, shown: &str, addresses: &[IpAddr]) -> Result<(), UserError> {
        check_single_host(shown, addresses)?;
        let missing: Vec<Network> = addresses
            .iter()
            .map(|address| Network::from(address.to_canonical()))
            .filter(|one| !self.has(one))
            .collect();
        let why = "it is neither this machine, a lab, nor a host that answered with a key";
        self.confirm(&missing, shown, why)
    }

    /// Rejects a network or an address that the user has not allowed entirely.
    pub fn check_network(&self, word: &str) -> Result<(), UserError> {
        let wanted: Network = word.parse().map_err(|_| {
            UserError::new(Exit::Usage, format!("`{word}` is not an address or a network"))
                .with_line("use", "10.0.0.2 or 10.0.0.0/24")
        })?;
        let missing: Vec<Network> = Some(wanted).into_iter().filter(|wanted| !self.has(wanted)).collect();
        let why = "a script may connect to all of it, and it is neither this machine nor in your allow-list";
        self.confirm(&missing, &wanted.to_string(), why)
    }

    /// Returns true if one allowed network contains all addresses from `first` to `last`.
    pub fn covers(&self, (first, last): (IpAddr, IpAddr)) -> bool {
        self.any(|network| network.contains(first) && network.contains(last))
    }

    fn has(&self, wanted: &Network) -> bool {
        self.any(|network| network.covers(wanted))
    }

    /// Returns the policy for traffic sent later, such as to an address that a name resolves to by then.
    pub fn policy(&self) -> Policy {
        Policy::own(self.networks())
    }

    /// Returns all networks allowed so far, including loopback.
    pub fn networks(&self) -> Vec<Network> {
        let own = [Network::LOOPBACK_V4, Network::LOOPBACK_V6];
        let answered = self.0.confirmed.borrow();
        own.iter().chain(&self.0.networks).chain(self.0.resolved_names()).chain(&*answered).copied().collect()
    }

    fn any(&self, judge: impl Fn(&Network) -> bool) -> bool {
        let own = [Network::LOOPBACK_V4, Network::LOOPBACK_V6];
        own.iter().chain(&self.0.networks).chain(self.0.confirmed.borrow().iter()).any(&judge)
            || self.0.resolved_names().iter().any(&judge)
    }

    /// Prompts for missing networks at a terminal. Without a terminal, or if the user says no, returns an error with the commands that
    /// allow them.
    fn confirm(&self, missing: &[Network], named: &str, why: &str) -> Result<(), UserError> {
        if missing.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = missing.iter().map(network_text).collect();
        let list = texts.join(",");
        if io::stdin().is_terminal() && io::stderr().is_terminal() {
            let about = if texts.contains(&named.to_owned()) { list.clone() } else { format!("{named} ({list})") };
            if self.ask_user(&about, missing) {
                return Ok(());
            }
        }
        let user_error = UserError::new(Exit::Preflight, format!("{named} is not a target you have allowed"))
            .with_line("why", why)
            .with_line("allow", with_allow_option(&self.0.command, &list))
            .with_line("always", format!("fathom allow add {}", texts.join(" ")));
        Err(self.0.bad_lines.iter().fold(user_error, |user_error, complaint| user_error.with_line("note", complaint)))
    }

    /// Prompts the user. The answer `always` also adds the networks to the allow file.
    fn ask_user(&self, about: &str, missing: &[Network]) -> bool {
        let mut stderr = io::stderr().lock();
        let mut answer = String::new();
        let is_asked = write!(stderr, "{about} is not allowed yet. Is it yours to load? [y/N/always] ").is_ok()
            && io::stdin().read_line(&mut answer).is_ok();
        drop(stderr);
        let answer = if is_asked { ConfirmAnswer::of(&answer) } else { ConfirmAnswer::No };
        if answer == ConfirmAnswer::Always {
            for network in missing {
                match append(&AllowEntry::Network(*network)) {
                    Ok(path) => eprintln!("added {} to {}", network_text(network), path.display()),
                    Err(error) => eprintln!("fathom: {error:#}; allowed for this run only"),
                }
            }
        }
        if answer != ConfirmAnswer::No {
            self.0.confirmed.borrow_mut().extend(missing);
        }
        answer != ConfirmAnswer::No
    }
}

impl AllowListState {
    fn add(&mut self, entry: AllowEntry) {
        match entry {
            AllowEntry::Network(network) => self.networks.push(network),
            AllowEntry::Name(name) => self.names.push(name),
        }
    }

    /// Returns the addresses of the names. A name that does not resolve allows nothing.
    fn resolved_names(&self) -> &[Network] {
        let addresses = || self.names.iter().filter_map(|name| target::resolve(name).ok()).flatten();
        self.resolved_names.get_or_init(|| addresses().map(Network::from).collect())
    }
}

/// The answer to a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfirmAnswer {
    Yes,
    No,
    Always,
}

impl ConfirmAnswer {
    /// Parses an answer. Anything but a clear yes is a no.
    fn of(text: &str) -> Self {
        match text.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Self::Yes,
            "a" | "always" => Self::Always,
            _ => Self::No,
        }
    }
}

/// Rejects addresses of more than one host, or of none.
pub fn check_single_host(shown: &str, addresses: &[IpAddr]) -> Result<(), UserError> {
    let is_never = |address: &IpAddr| {
        address.is_multicast() || address.is_unspecified() || *address == IpAddr::from([255, 255, 255, 255])
    };
    if !addresses.iter().map(IpAddr::to_canonical).any(|address| is_never(&address)) {
        return Ok(());
    }
    let user_error = UserError::new(Exit::Preflight, format!("{shown} is never a target"));
    Err(user_error.with_line("why", "broadcast, multicast and unspecified addresses reach hosts that you did not name"))
}

/// Returns the command with an `--allow` option for these addresses.
fn with_allow_option(command: &str, list: &str) -> String {
    if let Some(tool) = command.strip_prefix("fathom as ") {
        return format!("fathom as --allow {list} {tool}");
    }
    // The words after `--` are for a script.
    match command.split_once(" -- ") {
        Some((before, words)) => format!("{before} --allow {list} -- {words}"),
        None => format!("{command} --allow {list}"),
    }
}

/// Rejects a target that is not allowed or not reachable. Returns its addresses if they were resolved here.
pub fn check_target(
    wanted: &NamedTarget,
    from: Option<&HostReach>,
    allowed: &AllowList,
) -> Result<Vec<IpAddr>, UserError> {
    let NamedTarget { host, port, consent } = wanted;
    let is_in_lab = || match from {
        Some(HostReach::Lab(_) | HostReach::LabUp(..)) => true,
        Some(HostReach::This) => target::is_in_lab(),
        _ => false,
    };
    match consent {
        Consent::AllowListOutsideLabs | Consent::SingleHostOutsideLabs if is_in_lab() => return Ok(Vec::new()),
        Consent::WholeNetwork => return allowed.check_network(host).map(|()| Vec::new()),
        Consent::Server | Consent::SingleHostOutsideLabs => {
            let addresses = target::resolve(host)?;
            return check_single_host(host, &addresses).map(|()| addresses);
        }
        Consent::AllowList | Consent::AllowListOutsideLabs => {}
    }
    let addresses = target::resolve(host)?;
    // Nothing leaves this machine from a host of a lab.
    if from.is_some_and(HostReach::is_of_lab) {
        return Ok(addresses);
    }
    allowed.check(host, &addresses)?;
    match port {
        // Another host may reach the target even if this one cannot.
        Some(port) if matches!(from, Some(HostReach::This | HostReach::At(_))) => {
            target::check_reachable(&addresses, *port)?;
        }
        _ => {}
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        let shown = |(place, entry): AllowLine| match entry {
            Ok(entry) => format!("{place} {entry}"),
            Err(why) => format!("{place} {why}"),
        };
        read_lines(text, Path::new("f")).into_iter().map(shown).collect()
    }

    #[test]
    fn a_file_has_an_entry_a_line_and_a_wrong_one_is_named_and_harms_no_other() {
        let text =
            "# mine\n10.0.0.2\n\n  10.1.0.0/16  # the rack\nWeb-1.example.org\n10.0.0.300\nfd00::/8\nall hosts\n";
        let read = lines(text);
        assert_eq!(
            read,
            [
                "f:2 10.0.0.2",
                "f:4 10.1.0.0/16",
                "f:5 web-1.example.org",
                "f:6 `10.0.0.300` is not an address, a network or a name",
                "f:7 fd00::/8",
                "f:8 `all hosts` is not an address, a network or a name"
            ]
        );
    }

    #[test]
    fn the_older_form_of_the_file_is_read_too() {
        assert_eq!(lines("allow = [\"10.0.0.0/24\", \"::1\"]"), ["f:1 10.0.0.0/24", "f:2 ::1"]);
        assert_eq!(
            lines("allow = [\"10.0.0.0/24\""),
            ["f:1 `allow = [\"10.0.0.0/24\"` is not an address, a network or a name"]
        );
    }

    #[test]
    fn what_is_neither_address_network_nor_name_is_no_entry() {
        for word in ["", "10.0.0", "10.0.0.0/33", "a..b", "-", "http://a/", "a b", "::1::"] {
            assert_eq!(AllowEntry::read(word), None, "{word}");
        }
    }

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        use ConfirmAnswer::{Always, No, Yes};
        let answers = ["y\n", "YES", "always\n", "\n", "", "n", "yep"].map(ConfirmAnswer::of);
        assert_eq!(answers, [Yes, Yes, Always, No, No, No, No]);
    }

    #[test]
    fn the_line_that_allows_is_the_same_command_with_the_option_in_its_place() {
        let cases = [
            ("fathom http http://10.0.0.2/", "fathom http http://10.0.0.2/ --allow 10.0.0.2"),
            ("fathom as wrk -t2 http://10.0.0.2/", "fathom as --allow 10.0.0.2 wrk -t2 http://10.0.0.2/"),
            ("fathom app run a.lua http://b/ -- 16", "fathom app run a.lua http://b/ --allow 10.0.0.2 -- 16"),
        ];
        for (command, expected) in cases {
            assert_eq!(with_allow_option(command, "10.0.0.2"), expected);
        }
    }
}
