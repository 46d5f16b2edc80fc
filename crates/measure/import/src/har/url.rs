//! URLs of a recording: their hosts, and the places that they redirect to.

use fathom_http::url::{authority_at, split_origin};

use super::{super::RecordingFilter, archive::HarEntry};

/// The target of a redirect, as a whole URL.
pub(super) fn redirect_of(entry: &HarEntry) -> Option<String> {
    let answer = entry.response.as_ref().filter(|answer| matches!(answer.status, 301 | 302 | 303 | 307 | 308))?;
    let told = answer.redirect_url.as_deref().filter(|url| !url.is_empty());
    let to = entry.answer_header("location").next().or(told)?;
    Some(without_fragment(&resolved(&entry.request.url, to)).to_owned())
}

/// Resolves a reference against the URL of its page, in the forms that browsers write (RFC 3986 section 5.3).
pub(super) fn resolved(base: &str, reference: &str) -> String {
    let (origin, path) = split_origin(base).unwrap_or((base, ""));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if authority_at(reference).is_some() {
        reference.to_owned()
    } else if let Some(rest) = reference.strip_prefix("//") {
        format!("{}//{rest}", base.split("//").next().unwrap_or_default())
    } else if reference.starts_with('/') {
        format!("{origin}{reference}")
    } else if reference.starts_with('?') {
        format!("{origin}{path}{reference}")
    } else {
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        format!("{origin}{folder}{reference}")
    }
}

pub(super) fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or(url)
}

pub(super) fn host_of(url: &str) -> String {
    let behind = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = if host.starts_with('[') { host.split(']').next() } else { host.split(':').next() };
    host.unwrap_or_default().to_ascii_lowercase()
}

impl RecordingFilter {
    /// Whether requests to this URL are kept.
    pub(super) fn takes(&self, url: &str) -> bool {
        let path = split_origin(url).map_or("", |(_, path)| path);
        let path = if path.starts_with('/') { path } else { "/" };
        self.hosts.contain(&host_of(url))
            && (self.paths.is_empty() || self.paths.iter().any(|begin| path.starts_with(begin.as_str())))
    }
}
