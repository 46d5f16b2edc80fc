//! `host[:port]` as URLs and command lines have it (RFC 3986 section 3.2).

/// Splits `name`, `name:port`, `[address]` and `[address]:port` into the host without brackets and the text of the port. Text with
/// two or more colons and no brackets is an IPv6 address without a port. An address may have a zone (`fe80::1%eth0`). Returns
/// `None` if the host is empty or the brackets hold a name.
#[must_use]
pub fn split_host_port(text: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_address = host.contains(':') || !text.starts_with('[');
    (!host.is_empty() && is_address).then_some((host, port))
}

/// Parses a port number from 1 to 65535; digits only.
#[must_use]
pub fn port_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|&number| number != 0 && !text.starts_with('+'))
}

/// Returns the host as it stands before a port: an IPv6 address in brackets.
#[must_use]
pub fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_split_from_its_port() {
        let cases = [
            ("a.example", Some(("a.example", None))),
            ("a.example:80", Some(("a.example", Some("80")))),
            ("a.example:", Some(("a.example", Some("")))),
            ("[::1]:80", Some(("::1", Some("80")))),
            ("[::1]", Some(("::1", None))),
            ("[fe80::1%eth0]:80", Some(("fe80::1%eth0", Some("80")))),
            ("2001:db8::1", Some(("2001:db8::1", None))),
            ("[::1", None),
            ("[::1]80", None),
            ("[name]:80", None),
            (":80", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(split_host_port(text), expected, "{text}");
        }
    }

    #[test]
    fn a_port_is_a_number_from_1_to_65535() {
        assert_eq!(["1", "65535"].map(port_number), [Some(1), Some(65_535)]);
        assert_eq!(["0", "65536", "", "+1", "x"].map(port_number), [None; 5]);
    }
}
