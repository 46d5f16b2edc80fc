//! A script with its environment: its text, its target, its arguments, its limits.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    path::Path,
    sync::{Mutex, PoisonError},
};

use fathom_engine::Error;
use fathom_http::url::{Scheme, Url};
use fathom_model::{
    Settings,
    settings::SettingError,
    units::{Bytes, Nanos},
};
use fathom_sys::{policy::Policy, socket};
use ipnet::IpNet;

use super::ALLOW;

/// How long an address may take to accept the connection of `wrk.connect`: TCP sends its first segment three times in this time.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(5);
/// The longest script: hundreds of times the longest known one.
const SCRIPT_MAX: Bytes = Bytes(16 << 20);

/// Shared by the states of a trial; only the known addresses of the target change.
#[derive(Debug)]
pub(super) struct LuaScript {
    /// As given, for messages.
    pub(super) path: String,
    pub(super) text: Vec<u8>,
    /// The URL as typed, and the arguments after it.
    pub(super) args: Vec<String>,
    pub(super) target: Url,
    /// Everything after the authority, a fragment included.
    pub(super) whole_path: String,
    /// The port as written, if it was.
    pub(super) port: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) memory_max: usize,
    pub(super) callback_timeout: Nanos,
    /// Whether to report a script that does not load and continue without it, as wrk does.
    pub(super) is_lenient: bool,
    /// Whether the target's name is resolved on this host: not with a proxy or another address.
    pub(super) is_resolved_here: bool,
    pub(super) connect_policy: ConnectPolicy,
}

fn not_allowed(name: &str, expected: &str, given: &str) -> Error {
    let (expected, given) = (expected.to_owned(), given.to_owned());
    SettingError::NotAllowed { name: name.to_owned(), expected, given }.into()
}

impl LuaScript {
    /// Reads the settings and the file.
    pub(super) fn of(settings: &Settings, policy: &Policy) -> Result<Self, Error> {
        let url = settings.text("url").unwrap_or_default();
        let wrong = |error: &dyn std::error::Error| not_allowed("url", &format!("one URL ({error})"), &url);
        let target: Url = url.parse().map_err(|error| wrong(&error))?;
        let path = settings.text("script").unwrap_or_default();
        let text = policy.read(Path::new(&path), SCRIPT_MAX).map_err(|cause| Error::Unsupported {
            what: format!("cannot read the script {path}: {cause}"),
            hint: None,
        })?;
        let words = settings.text("args").unwrap_or_default();
        let words = shlex::split(&words).ok_or_else(|| not_allowed("args", "words as a shell reads them", &words))?;
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let port = host.rsplit_once(']').map_or(host, |(_, port)| port).rsplit_once(':').map(|(_, port)| port);
        let headers = settings.text("header").unwrap_or_default();
        let headers = headers.lines().filter_map(|line| line.split_once(": "));
        let is_elsewhere = |name: &&str| settings.text(name).is_some();
        Ok(Self {
            text: without_shebang(text),
            whole_path: if behind.starts_with('/') { behind.to_owned() } else { "/".to_owned() },
            port: port.map(str::to_owned),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            memory_max: settings
                .size("script-memory")
                .map_or(usize::MAX, |size| usize::try_from(size.0).unwrap_or(usize::MAX)),
            callback_timeout: settings.span("script-patience").unwrap_or(Nanos::from_secs(10)),
            is_lenient: settings.flag("lenient"),
            is_resolved_here: !["connect-to", "proxy", "unix"].iter().any(is_elsewhere),
            connect_policy: ConnectPolicy::of(settings, &target.host, policy)?,
            args: std::iter::once(url).chain(words).collect(),
            path,
            target,
        })
    }

    /// The scheme as scripts see it, which is also the service with the default port.
    pub(super) fn service(&self) -> String {
        self.port.clone().unwrap_or_else(|| self.target.scheme.name().to_owned())
    }

    pub(super) fn is_secure(&self) -> bool {
        self.target.scheme == Scheme::Https
    }
}

/// Lua's own file loader skips a first line for the kernel; the line numbers stay the same.
fn without_shebang(mut text: Vec<u8>) -> Vec<u8> {
    if text.starts_with(b"#") {
        text.splice(..0, *b"--");
    }
    text
}

/// The addresses that a script may connect to: this machine, its target, and other allowed ones.
#[derive(Debug)]
pub(super) struct ConnectPolicy {
    host: String,
    of_target: Mutex<BTreeSet<IpAddr>>,
    allowed: Vec<IpNet>,
    policy: Policy,
}

impl ConnectPolicy {
    fn of(settings: &Settings, host: &str, policy: &Policy) -> Result<Self, Error> {
        let text = settings.text(ALLOW).unwrap_or_default();
        let range = |word: &str| {
            let address = word.parse::<IpAddr>().map(IpNet::from);
            let wrong = |_| not_allowed(ALLOW, "addresses and networks such as 10.0.0.0/8", &text);
            word.parse::<IpNet>().or(address).map_err(wrong)
        };
        let words = text.split([',', ' ', '\n']).filter(|word| !word.is_empty());
        let allowed = words.map(range).collect::<Result<_, Error>>()?;
        Ok(Self { host: host.to_owned(), of_target: Mutex::default(), allowed, policy: policy.clone() })
    }

    /// The addresses of a name at a port or a service.
    pub(super) fn look_up(&self, host: &str, service: &str) -> Result<Vec<SocketAddr>, String> {
        let unknown = |why: String| format!("unable to resolve {host}:{service} {why}");
        let port = port_of(service).ok_or_else(|| unknown("Servname not supported for ai_socktype".to_owned()))?;
        let found = (host, port).to_socket_addrs().map_err(|error| {
            let text = error.to_string();
            unknown(text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned())
        })?;
        let found: Vec<SocketAddr> = found.collect();
        if host == self.host {
            let mut known = self.of_target.lock().unwrap_or_else(PoisonError::into_inner);
            known.extend(found.iter().map(SocketAddr::ip));
        }
        Ok(found)
    }

    /// Rejects an address that is not allowed.
    pub(super) fn check(&self, address: SocketAddr) -> Result<(), String> {
        let ip = address.ip().to_canonical();
        if ip.is_multicast() || ip.is_unspecified() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(format!("{address} is never a target"));
        }
        let is_of_target = || self.of_target.lock().unwrap_or_else(PoisonError::into_inner).contains(&address.ip());
        let is_allowed = ip.is_loopback() || self.allowed.iter().any(|range| range.contains(&ip)) || is_of_target();
        // A later lookup of a name may return other addresses than the one the user approved.
        self.policy.judge(ip.into()).map_err(|refused| refused.to_string())?;
        if is_allowed { Ok(()) } else { Err(format!("{address} is not a target you have allowed")) }
    }

    /// Whether an address accepts a connection.
    pub(super) fn takes_connection(&self, address: SocketAddr) -> Result<bool, String> {
        self.check(address)?;
        let to = self.policy.permit(address).map_err(|refused| refused.to_string())?;
        Ok(socket::stream(address).and_then(|own| socket::connect(&own, &to, CONNECT_TIMEOUT)).is_ok())
    }
}

/// A port by its number or its name, as in `getaddrinfo`.
fn port_of(service: &str) -> Option<u16> {
    let listed = || {
        let text = fs::read_to_string("/etc/services").ok()?;
        text.lines().find_map(|line| {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let (name, port) = (words.next()?, words.next()?.strip_suffix("/tcp")?);
            (name == service || words.any(|alias| alias == service)).then(|| port.parse().ok()).flatten()
        })
    };
    match service {
        "http" => Some(80),
        "https" => Some(443),
        service => service.parse().ok().or_else(listed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(url: &str) -> LuaScript {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "#!/usr/bin/wrk\nx = 1").unwrap();
        let settings = Settings::default().with("url", url).with("script", file.path().to_str().unwrap());
        let settings =
            settings.with("args", "16 'two words'").with("header", "A: b\nC:d").with("script-allow", "192.0.2.0/24");
        LuaScript::of(&settings, &Policy::anything()).unwrap()
    }

    #[test]
    fn a_target_is_kept_as_it_was_written() {
        let cases = [
            ("http://127.0.0.1:80/a?b#c", "/a?b#c", Some("80"), "80"),
            ("https://me:pw@[::1]?x", "/", None, "https"),
            ("http://[::1]:8080", "/", Some("8080"), "8080"),
        ];
        for (url, path, port, service) in cases {
            let script = script(url);
            assert_eq!((script.whole_path.as_str(), script.port.as_deref()), (path, port), "{url}");
            assert_eq!(script.service(), service);
            assert_eq!(script.args, [url, "16", "two words"]);
            assert_eq!(script.headers, [("A".to_owned(), "b".to_owned())], "wrk takes fields with a blank only");
            assert_eq!(script.text, b"--#!/usr/bin/wrk\nx = 1");
        }
    }

    #[test]
    fn a_script_reaches_its_target_and_what_was_allowed() {
        let reach = script("http://localhost:1/").connect_policy;
        let check = |address: &str| reach.check(address.parse().unwrap());
        assert!(check("127.0.0.9:1").is_ok() && check("192.0.2.9:1").is_ok());
        assert_eq!(check("198.51.100.1:80").unwrap_err(), "198.51.100.1:80 is not a target you have allowed");
        let all = Settings::default().with(ALLOW, "0.0.0.0/0 ::/0");
        let reach_all = ConnectPolicy::of(&all, "localhost", &Policy::anything()).unwrap();
        for address in ["224.0.0.1:80", "255.255.255.255:80", "0.0.0.0:80", "[ff02::1]:80", "[::ffff:224.0.0.1]:80"] {
            let refused = reach_all.check(address.parse().unwrap()).unwrap_err();
            assert!(refused.ends_with("is never a target"), "{refused}");
        }
        assert!(!reach.look_up("localhost", "http").unwrap().is_empty());
        assert!(
            reach.look_up("nowhere.invalid", "80").unwrap_err().starts_with("unable to resolve nowhere.invalid:80 ")
        );
        assert!(reach.look_up("localhost", "no-such-service").is_err());
    }
}
