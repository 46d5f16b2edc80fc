//! The cookies of one user (RFC 6265), as far as servers under test use them.
//!
//! A cookie is returned to the host that set it and, with a `Domain`, to the hosts below it. There is no list of public suffixes:
//! a scenario names the few hosts it talks to. Times are wall-clock times, passed in by the caller.

use fathom_model::units::Nanos;

/// The most cookies of a user. No real site sets more, and a server that sets a new one with each answer must not fill the memory.
const COOKIES_MAX: usize = 64;

/// The properties of a request's destination that matter for cookies.
#[derive(Debug, Clone, Copy)]
pub struct CookieScope<'a> {
    /// In lower case, without the port.
    pub host: &'a str,
    /// With the query.
    pub target: &'a [u8],
    /// Whether the request uses TLS.
    pub is_secure: bool,
}

impl<'a> CookieScope<'a> {
    fn path(&self) -> &'a [u8] {
        let end = self.target.iter().position(|byte| matches!(byte, b'?' | b'#'));
        &self.target[..end.unwrap_or(self.target.len())]
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cookie {
    /// `name=value`, as it is returned.
    pair: Box<[u8]>,
    name_len: usize,
    path: Box<[u8]>,
    /// The host that set it, or the domain that it named.
    domain: Box<str>,
    is_of_host_only: bool,
    is_secure: bool,
    /// On the wall clock; a cookie without an end lasts as long as its user.
    until: Option<Nanos>,
}

impl Cookie {
    fn name(&self) -> &[u8] {
        &self.pair[..self.name_len]
    }

    #[cfg(test)]
    fn value(&self) -> &[u8] {
        self.pair.get(self.name_len + 1..).unwrap_or_default()
    }

    fn goes_to(&self, to: &CookieScope<'_>) -> bool {
        let host = if self.is_of_host_only { *self.domain == *to.host } else { is_within(to.host, &self.domain) };
        host && (to.is_secure || !self.is_secure) && covers(&self.path, to.path())
    }
}

/// Whether a host is a domain or below it (RFC 6265 section 5.1.3).
fn is_within(host: &str, domain: &str) -> bool {
    match host.strip_suffix(domain) {
        Some("") => true,
        Some(front) => front.ends_with('.') && host.parse::<std::net::IpAddr>().is_err(),
        None => false,
    }
}

/// Whether a cookie's path covers that of a request (RFC 6265 section 5.1.4).
fn covers(path: &[u8], of_request: &[u8]) -> bool {
    match of_request.strip_prefix(path) {
        Some(rest) => rest.is_empty() || path.ends_with(b"/") || rest.starts_with(b"/"),
        None => false,
    }
}

/// The folder of a request's path (RFC 6265 section 5.1.4).
fn default_path(of_request: &[u8]) -> &[u8] {
    match of_request.iter().rposition(|byte| *byte == b'/') {
        Some(at) if at > 0 && of_request[0] == b'/' => &of_request[..at],
        _ => b"/",
    }
}

/// The cookies of a user, in the order in which they are sent.
#[derive(Debug, Default)]
pub struct CookieJar(Vec<Cookie>);

impl CookieJar {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stores the cookie of a `Set-Cookie` field (RFC 6265 section 5.2); ignores an invalid one.
    pub fn store(&mut self, field: &[u8], from: &CookieScope<'_>, now: Nanos) {
        let Some(cookie) = parse_set_cookie(field, from, now) else { return };
        let is_same =
            |old: &Cookie| old.name() == cookie.name() && old.path == cookie.path && old.domain == cookie.domain;
        let old = self.0.iter().position(is_same);
        let is_past = cookie.until.is_some_and(|until| until <= now);
        match (old, is_past) {
            (Some(idx), true) => drop(self.0.remove(idx)),
            (Some(idx), false) => self.0[idx] = cookie,
            (None, false) if self.0.len() < COOKIES_MAX => {
                // Longer paths first, and of equal ones the older cookie (RFC 6265 section 5.4).
                let at = self.0.partition_point(|other| other.path.len() >= cookie.path.len());
                self.0.insert(at, cookie);
            }
            (None, _) => {}
        }
    }

    /// Appends `a=1; b=2` to `pairs` for a request that has its `own` cookies; these take precedence over stored ones of the same name.
    pub fn append_matching(&self, to: &CookieScope<'_>, now: Nanos, own: &[u8], pairs: &mut Vec<u8>) {
        let is_alive = |cookie: &Cookie| cookie.until.is_none_or(|until| until > now);
        let mut lead: &[u8] = b"";
        for cookie in self.0.iter().filter(|cookie| is_alive(cookie) && cookie.goes_to(to)) {
            if !names(own, cookie.name()) {
                pairs.extend_from_slice(lead);
                pairs.extend_from_slice(&cookie.pair);
                lead = b"; ";
            }
        }
    }

    /// The value of the last cookie of a name, in the order in which they are sent.
    #[cfg(test)]
    fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.iter().rev().find(|cookie| cookie.name() == name).map(Cookie::value)
    }
}

/// Whether a `Cookie` field contains a cookie of this name.
fn names(own: &[u8], name: &[u8]) -> bool {
    let mut pairs = own.split(|byte| *byte == b';');
    pairs.any(|pair| pair.split(|byte| *byte == b'=').next().is_some_and(|own| own.trim_ascii() == name))
}

/// The value of a cookie of this name in a `Set-Cookie` field.
pub(crate) fn value_in<'f>(field: &'f [u8], name: &[u8]) -> Option<&'f [u8]> {
    let pair = field.split(|byte| *byte == b';').next()?;
    let equals = memchr::memchr(b'=', pair)?;
    (pair[..equals].trim_ascii() == name).then(|| pair[equals + 1..].trim_ascii())
}

fn parse_set_cookie(field: &[u8], from: &CookieScope<'_>, now: Nanos) -> Option<Cookie> {
    // A cookie with control characters is invalid: it would break the head of the request that returns it.
    if field.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return None;
    }
    let mut parts = field.split(|byte| *byte == b';');
    let pair = parts.next()?;
    let equals = memchr::memchr(b'=', pair)?;
    let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
    if name.is_empty() {
        return None;
    }
    let mut cookie = Cookie {
        pair: [name, b"=", value].concat().into(),
        name_len: name.len(),
        path: default_path(from.path()).into(),
        domain: from.host.into(),
        is_of_host_only: true,
        is_secure: false,
        until: None,
    };
    let mut has_age = false;
    for part in parts {
        let equals = memchr::memchr(b'=', part).unwrap_or(part.len());
        let (key, value) = (part[..equals].trim_ascii(), part.get(equals + 1..).unwrap_or_default().trim_ascii());
        match key.to_ascii_lowercase().as_slice() {
            b"path" if value.starts_with(b"/") => cookie.path = value.into(),
            b"secure" => cookie.is_secure = true,
            b"max-age" => {
                if let Some(until) = expiry_of_max_age(value, now) {
                    cookie.until = Some(until);
                    has_age = true;
                }
            }
            // Max-Age has precedence over Expires, in any order (RFC 6265 section 5.3).
            b"expires" if !has_age => cookie.until = date(value).or(cookie.until),
            b"domain" if !value.is_empty() => {
                let domain = std::str::from_utf8(value).ok()?.trim_start_matches('.').to_ascii_lowercase();
                // A name without a dot is a top-level domain, whose subdomains are unrelated.
                if !is_within(from.host, &domain) || !domain.contains('.') && domain != from.host {
                    return None;
                }
                cookie.is_of_host_only = false;
                cookie.domain = domain.into();
            }
            _ => {}
        }
    }
    Some(cookie)
}

fn expiry_of_max_age(value: &[u8], now: Nanos) -> Option<Nanos> {
    let seconds: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Some(if seconds == 0 { Nanos::ZERO } else { Nanos(now.0.saturating_add(seconds.saturating_mul(1_000_000_000))) })
}

/// A date as servers write it, in the lenient reading of RFC 6265 section 5.1.1; times before 1970 are 0.
fn date(text: &[u8]) -> Option<Nanos> {
    const MONTHS: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    let (mut time, mut day, mut month, mut year) = (None, None, None, None);
    let is_delimiter = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b':' || *byte >= 0x80);
    for token in text.split(is_delimiter).filter(|token| !token.is_empty()) {
        let number = std::str::from_utf8(token).ok().and_then(|token| token.parse::<i64>().ok());
        if time.is_none() && token.contains(&b':') {
            time = clock_time(token);
        } else if let (None, Some(number), true) = (day, number, token.len() <= 2) {
            day = Some(number);
        } else if let Some(idx) = MONTHS.iter().position(|name| token.to_ascii_lowercase().starts_with(name)) {
            month = month.or(i64::try_from(idx).ok());
        } else if let (None, Some(number)) = (year, number) {
            year = Some(number);
        }
    }
    let year = match year? {
        two @ 70..=99 => two + 1900,
        two @ 0..=69 => two + 2000,
        four => four,
    };
    let (day, month) = (day?, month?);
    if !(1601..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days_from_1970(year, month + 1, day) * 86_400 + time?;
    Some(Nanos(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000)))
}

fn clock_time(token: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(token).ok()?;
    let mut numbers = text.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let is_sound = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
    is_sound.then(|| hour * 3600 + minute * 60 + second)
}

/// Days of the Gregorian calendar, with years that begin in March, so that the leap day is the last of a year.
fn days_from_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // 719,468 days lie between March 1 of the year 0 and January 1, 1970.
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(1_700_000_000_000_000_000);

    fn at<'a>(host: &'a str, target: &'a str) -> CookieScope<'a> {
        CookieScope { host, target: target.as_bytes(), is_secure: false }
    }

    fn line(jar: &CookieJar, to: &CookieScope<'_>, now: Nanos) -> String {
        let mut line = Vec::new();
        jar.append_matching(to, now, b"", &mut line);
        String::from_utf8(line).unwrap()
    }

    fn jar(fields: &[&str], from: &CookieScope<'_>) -> CookieJar {
        let mut jar = CookieJar::default();
        for field in fields {
            jar.store(field.as_bytes(), from, NOW);
        }
        jar
    }

    #[test]
    fn cookies_go_back_to_the_host_that_set_them() {
        let shop = at("shop.test", "/login");
        let none = ["no-pair", "=x", "a=1\rX: y", "b=\0"];
        let some = ["sid=abc; Path=/; HttpOnly", "theme = dark ;Path=/"];
        let jar = jar(&[&some[..], &none[..]].concat(), &shop);
        assert_eq!(line(&jar, &shop, NOW), "sid=abc; theme=dark");
        assert_eq!(line(&jar, &at("www.shop.test", "/"), NOW), "", "only this host");
        assert_eq!(line(&CookieJar::default(), &shop, NOW), "");
    }

    #[test]
    fn longer_paths_go_first_and_of_equal_ones_the_older_cookie() {
        let from = at("shop.test", "/");
        let jar = jar(&["a=1; Path=/", "b=1; Path=/orders", "c=1; Path=/", "a=2; Path=/"], &from);
        assert_eq!(line(&jar, &at("shop.test", "/orders/7"), NOW), "b=1; a=2; c=1");
    }

    #[test]
    fn what_a_request_says_itself_is_not_said_again() {
        let to = at("h", "/");
        let jar = jar(&["sid=1", "id=2", "b=3"], &to);
        for (own, expected) in [("sid=9", "id=2; b=3"), ("x=sid=1; id", "sid=1; b=3"), ("b=; sid=; id = 0", "")] {
            let mut pairs = Vec::new();
            jar.append_matching(&to, NOW, own.as_bytes(), &mut pairs);
            assert_eq!(String::from_utf8(pairs).unwrap(), expected, "{own}");
        }
    }

    #[test]
    fn a_domain_reaches_the_hosts_below_it_and_no_stranger_sets_it() {
        let from = at("www.shop.test", "/");
        let own = jar(&["a=1; Domain=.Shop.test"], &from);
        assert_eq!(line(&own, &at("api.shop.test", "/"), NOW), "a=1");
        assert_eq!(line(&own, &at("myshop.test", "/"), NOW), "");
        assert!(jar(&["a=1; Domain=bank.test", "b=1; Domain=api.www.shop.test", "c=1; Domain=test"], &from).is_empty());
    }

    #[test]
    fn a_path_covers_what_is_below_it() {
        let jar = jar(&["a=1; Path=/shop", "b=2"], &at("h", "/shop/cart/add?x=/y/z"));
        assert_eq!(line(&jar, &at("h", "/shop/cart?q"), NOW), "b=2; a=1");
        assert_eq!(line(&jar, &at("h", "/shop"), NOW), "a=1");
        assert_eq!(line(&jar, &at("h", "/shopping"), NOW), "");
    }

    #[test]
    fn secure_cookies_stay_off_plain_connections() {
        let mut to = at("h", "/");
        let jar = jar(&["a=1; Secure"], &to);
        assert_eq!(line(&jar, &to, NOW), "");
        to.is_secure = true;
        assert_eq!(line(&jar, &to, NOW), "a=1");
    }

    #[test]
    fn a_cookie_ends_when_it_says_and_is_deleted_by_a_date_in_the_past() {
        let to = at("h", "/");
        let mut short = jar(&["a=1; Max-Age=10; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "b=2"], &to);
        assert_eq!(line(&short, &to, NOW), "a=1; b=2");
        assert_eq!(line(&short, &to, NOW + Nanos::from_secs(10)), "b=2");
        short.store(b"b=; Expires=Thu, 01-Jan-1970 00:00:01 GMT", &to, NOW);
        short.store(b"a=3; Max-Age=0", &to, NOW);
        assert!(short.is_empty());
    }

    #[test]
    fn a_cookie_of_the_same_name_takes_the_place_of_the_old_one() {
        let to = at("h", "/");
        let jar = jar(&["a=1", "a=2"], &to);
        assert_eq!((line(&jar, &to, NOW).as_str(), jar.value(b"a")), ("a=2", Some(b"2".as_slice())));
    }

    #[test]
    fn dates_are_read_in_every_form_that_servers_use() {
        const HUGE: &str = "Sun, 06 Nov 1994 999999999999999992:49:37 GMT";
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(date(text.as_bytes()), Some(Nanos::from_secs(784_111_777)), "{text}");
        }
        assert_eq!(date(b"Thu, 29 Feb 2024 00:00:00 GMT"), Some(Nanos::from_secs(1_709_164_800)));
        assert_eq!(date(b"Wed, 31 Dec 1969 23:59:59 GMT"), Some(Nanos::ZERO));
        for text in ["", "tomorrow", "06 Nov 1994", "Sun, 06 Nov 1994 25:49:37 GMT", "32 Nov 1994 08:49:37", HUGE] {
            assert_eq!(date(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_server_that_sets_ever_new_cookies_fills_no_memory() {
        let to = at("h", "/");
        let mut jar = CookieJar::default();
        for n in 0..1_000 {
            jar.store(format!("c{n}=1").as_bytes(), &to, NOW);
        }
        assert_eq!(jar.0.len(), COOKIES_MAX);
    }
}
