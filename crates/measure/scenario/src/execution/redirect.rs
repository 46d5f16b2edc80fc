//! Requests that follow a redirect (RFC 9110 section 15.4).

use fathom_http::url::{Url, authority_at, without_dots};

use super::program::ScenarioServer;

/// Whether a status redirects to another place.
pub(crate) const fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Resolves a `Location`: the server, if it is a known one, and path and query.
pub(crate) fn resolve(location: &[u8], servers: &[ScenarioServer], from: u16, target: &[u8]) -> Option<(u16, Vec<u8>)> {
    let location = std::str::from_utf8(location).ok()?;
    let location = location.split('#').next().unwrap_or_default();
    let from_server = &servers[usize::from(from)];
    let absolute = match location.strip_prefix("//") {
        Some(rest) => format!("{}://{rest}", from_server.url.scheme.name()),
        None => location.to_owned(),
    };
    if authority_at(&absolute).is_some() {
        let url: Url = absolute.parse().ok()?;
        let place = servers.iter().position(|server| server.serves(&url))?;
        return Some((u16::try_from(place).ok()?, url.target.into_bytes()));
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let path = String::from_utf8_lossy(path);
    let joined = match location.as_bytes().first() {
        Some(b'/') => location.to_owned(),
        Some(b'?') => format!("{path}{location}"),
        // The same document, its query included (RFC 3986 section 5.2.2).
        None => String::from_utf8_lossy(target).into_owned(),
        _ => format!("{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
    };
    let is_sound = joined.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| (from, without_dots(&joined).into_bytes()))
}

/// The request for another place, with its target and host. After 303, or a `POST` after 301 and 302, it is a `GET` without a body.
pub(crate) fn request(before: &[u8], status: u16, server: &ScenarioServer, target: &[u8]) -> Vec<u8> {
    let head_end = memchr::memmem::find(before, b"\r\n\r\n").map_or(before.len(), |at| at + 2);
    let (head, body) = before.split_at(head_end);
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let method = lines.next().unwrap_or_default().split(|byte| *byte == b' ').next().unwrap_or_default();
    let becomes_get = match status {
        303 => method != b"HEAD",
        301 | 302 => method == b"POST",
        _ => false,
    };
    let host = server.url.host_field();
    let mut request = if becomes_get { b"GET".to_vec() } else { method.to_vec() };
    for part in [b" ".as_slice(), target, b" HTTP/1.1\r\nHost: ", host.as_bytes(), b"\r\n"] {
        request.extend_from_slice(part);
    }
    let was_host = field_of(before, b"host").unwrap_or_default();
    let is_elsewhere = !was_host.eq_ignore_ascii_case(host.as_bytes());
    for line in lines.filter(|line| !line.is_empty()) {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default().to_ascii_lowercase();
        let is_left_out = match name.as_slice() {
            b"host" => true,
            // These describe a body, and browsers send the origin of a GET only to other hosts.
            b"content-length" | b"content-type" | b"content-encoding" | b"content-language" | b"origin" => becomes_get,
            // Data for one host must not go to another.
            b"authorization" | b"cookie" => is_elsewhere,
            _ => false,
        };
        if !is_left_out {
            request.extend_from_slice(line);
            request.extend_from_slice(b"\r\n");
        }
    }
    request.extend_from_slice(if becomes_get { b"\r\n" } else { body });
    request
}

fn field_of<'r>(request: &'r [u8], name: &[u8]) -> Option<&'r [u8]> {
    request.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
        let (key, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        key.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers() -> Vec<ScenarioServer> {
        ["http://h:8080/", "https://other/"].map(|url| ScenarioServer::new(url.parse().unwrap())).into()
    }

    fn resolved(location: &str) -> Option<(u16, String)> {
        let (server, target) = resolve(location.as_bytes(), &servers(), 0, b"/a/b/c?q")?;
        Some((server, String::from_utf8(target).unwrap()))
    }

    #[test]
    fn a_location_is_resolved_against_what_was_asked() {
        let cases = [
            ("/x?y", 0, "/x?y"),
            ("d", 0, "/a/b/d"),
            ("../d?z", 0, "/a/d?z"),
            ("../..", 0, "/"),
            ("?z", 0, "/a/b/c?z"),
            ("", 0, "/a/b/c?q"),
            ("#f", 0, "/a/b/c?q"),
            ("http://H:8080/y#f", 0, "/y"),
            ("https://other", 1, "/"),
            ("/x?back=http://z/", 0, "/x?back=http://z/"),
            ("next?u=http://z/b", 0, "/a/b/next?u=http://z/b"),
            ("?u=http://z/b", 0, "/a/b/c?u=http://z/b"),
        ];
        for (location, server, target) in cases {
            assert_eq!(resolved(location), Some((server, target.to_owned())), "{location}");
        }
        for location in ["http://stranger/", "https://h:8080/", "mailto://x", "/a b", "/\u{e9}"] {
            assert_eq!(resolved(location), None, "{location}");
        }
        assert_eq!(resolved("//h:8080/p"), Some((0, "/p".to_owned())));
    }

    #[test]
    fn a_post_becomes_a_get_where_that_is_usual() {
        let before = b"POST /a HTTP/1.1\r\nHost: h:8080\r\nAuthorization: x\r\nCookie: a=1\r\nContent-Type: t\r\nContent-Length: 3\r\nX: y\r\n\r\nabc";
        let servers = servers();
        let text = |status, server: usize| String::from_utf8(request(before, status, &servers[server], b"/n")).unwrap();
        for status in [301, 302, 303] {
            assert_eq!(
                text(status, 0),
                "GET /n HTTP/1.1\r\nHost: h:8080\r\nAuthorization: x\r\nCookie: a=1\r\nX: y\r\n\r\n"
            );
        }
        for status in [307, 308] {
            let head = "POST /n HTTP/1.1\r\nHost: other\r\nContent-Type: t\r\nContent-Length: 3\r\nX: y\r\n\r\nabc";
            assert_eq!(text(status, 1), head, "the other host is told neither");
        }
    }
}
