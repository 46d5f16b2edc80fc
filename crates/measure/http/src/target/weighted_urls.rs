//! URLs with their weights, grouped by server.

use fathom_model::Settings;

use super::TargetConfigError;
use crate::url::{Url, authority_at};

/// A larger weight would leave the other URLs no turn in a pattern of useful length.
const WEIGHT_MAX: u64 = 1_000_000;

/// A URL with its weight relative to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WeightedUrl {
    pub(super) weight: u64,
    pub(super) url: Url,
}

impl WeightedUrl {
    /// Parses the lines of the option `url`, each `[WEIGHT ]URL`; `None` if it is not set.
    pub(super) fn all(settings: &Settings) -> Result<Option<Vec<Self>>, TargetConfigError> {
        let Some(text) = settings.text("url") else { return Ok(None) };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let targets: Vec<Self> = lines.map(|(line, text)| Self::parse(line, text.trim())).collect::<Result<_, _>>()?;
        // A text without lines is reported as a URL without a scheme.
        if targets.is_empty() { Self::parse(1, "").map(|target| Some(vec![target])) } else { Ok(Some(targets)) }
    }

    fn parse(line: usize, text: &str) -> Result<Self, TargetConfigError> {
        let (weight, url) = text.split_once(char::is_whitespace).unwrap_or(("1", text));
        // A URL that contains a space is not a weight and a URL.
        let (weight, url) = if authority_at(weight).is_some() { ("1", text) } else { (weight, url.trim()) };
        let number = weight.parse().ok().filter(|number| (1..=WEIGHT_MAX).contains(number));
        let weight = number.ok_or_else(|| TargetConfigError::Weight { line, given: weight.to_owned() })?;
        let url = url.parse().map_err(|cause| TargetConfigError::Url { line, cause })?;
        Ok(Self { weight, url })
    }
}

/// Groups URLs by server in order of first occurrence. Also returns, for each URL, the index of its server.
pub(super) fn group_by_server(targets: Vec<WeightedUrl>) -> (Vec<Vec<WeightedUrl>>, Vec<u16>) {
    let mut servers: Vec<Vec<WeightedUrl>> = Vec::new();
    let places = targets.into_iter().map(|target| {
        let is_same = |other: &Url| {
            (other.scheme, &other.host, other.port) == (target.url.scheme, &target.url.host, target.url.port)
        };
        let known = servers.iter().position(|server| is_same(&server[0].url));
        let place = known.unwrap_or_else(|| {
            servers.push(Vec::new());
            servers.len() - 1
        });
        servers[place].push(target);
        u16::try_from(place).unwrap_or(u16::MAX)
    });
    let places = places.collect();
    (servers, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<WeightedUrl>, TargetConfigError> {
        WeightedUrl::all(&Settings::default().with("url", text)).map(Option::unwrap)
    }

    #[test]
    fn a_line_is_a_url_with_or_without_a_weight() {
        let targets = all("http://a/x\n\n  70 https://b/y  \n3\thttp://a/z\n").unwrap();
        let read: Vec<_> = targets.iter().map(|target| (target.weight, target.url.to_string())).collect();
        let expected = [(1, "http://a/x"), (70, "https://b/y"), (3, "http://a/z")];
        assert_eq!(read, expected.map(|(weight, url)| (weight, url.to_owned())));
        assert!(WeightedUrl::all(&Settings::default()).unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said_with_its_number() {
        let cases = [
            ("http://a\n0 http://b", "option `url`, line 2: `0` is not a weight from 1 to 1000000"),
            ("much http://b", "option `url`, line 1: `much` is not a weight from 1 to 1000000"),
            ("http://a\n\nftp://b", "option `url`, line 3: `ftp://b` does not begin with http:// or https://"),
            (
                "http://a/b c",
                "option `url`, line 1: `http://a/b c` has a character in its path that must be percent-encoded",
            ),
            ("a.example", "option `url`, line 1: `a.example` does not begin with http:// or https://"),
            (" ", "option `url`, line 1: `` does not begin with http:// or https://"),
        ];
        for (text, error) in cases {
            assert_eq!(all(text).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn targets_on_one_server_share_its_connections() {
        let (servers, places) =
            group_by_server(all("http://a/1\nhttps://a/2\n5 http://a:80/3\nhttp://a:81/4").unwrap());
        let ports: Vec<_> = servers.iter().map(|server| (server.len(), server[0].url.port)).collect();
        assert_eq!(
            (ports.as_slice(), places.as_slice()),
            ([(2, 80), (1, 443), (1, 81)].as_slice(), [0, 1, 0, 2].as_slice())
        );
    }
}
