//! The common parts of all requests of a test: method, fields, body, version.

use std::path::PathBuf;

use data_encoding::BASE64;
use fathom_model::{Settings, units::Bytes};
use fathom_sys::policy::Policy;

use super::TargetConfigError;
use crate::{
    h1::{HeaderField, KeepAlive, Method, Request, RequestError, Version},
    url::Url,
};

/// The longest body; memory holds one copy per pipelined request.
const BODY_MAX: Bytes = Bytes(256 << 20);

/// How a request names its target (RFC 9112 section 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetForm {
    /// Path and query: the peer is the server, or a tunnel to it.
    Origin,
    /// The whole URL: the peer is a proxy, with the authorization that it requires.
    Absolute(Option<HeaderField>),
}

/// Combined with a target, this gives a request.
#[derive(Debug, Clone)]
pub(super) struct RequestTemplate {
    method: String,
    path: String,
    version: Version,
    keep_alive: KeepAlive,
    host: Option<String>,
    user: Option<String>,
    /// Default fields after `Host`.
    default_fields: Vec<HeaderField>,
    fields: Vec<HeaderField>,
    body: Vec<u8>,
}

impl RequestTemplate {
    pub(super) fn from((settings, policy): (&Settings, &Policy)) -> Result<Self, TargetConfigError> {
        let body = body(settings, policy)?;
        let method = settings.text("method").unwrap_or_else(|| if body.is_some() { "POST" } else { "GET" }.to_owned());
        let mut usual = vec![HeaderField::new("User-Agent", "fathom")?];
        for (option, name) in [("accept-encoding", "Accept-Encoding"), ("cookie", "Cookie")] {
            if let Some(value) = settings.text(option) {
                usual.push(HeaderField::new(name, &value)?);
            }
        }
        let lines = settings.text("header").unwrap_or_default();
        let lines = lines.lines().filter(|line| !line.trim().is_empty());
        Ok(Self {
            method,
            path: settings.text("path").unwrap_or_else(|| "/".to_owned()),
            version: match settings.text("http").as_deref() {
                Some("0.9") => Version::Http09,
                Some("1.0") => Version::Http10,
                _ => Version::Http11,
            },
            keep_alive: if settings.count("per-connection") == Some(1) { KeepAlive::Off } else { KeepAlive::On },
            host: settings.text("host"),
            user: settings.text("user"),
            default_fields: usual,
            fields: lines.map(str::parse).collect::<Result<_, _>>()?,
            body: body.unwrap_or_default(),
        })
    }

    /// How the answers are read.
    pub(super) fn method(&self) -> Method {
        if self.version == Version::Http09 { Method::Http09 } else { Method::of(&self.method) }
    }

    /// The bytes of a request for a URL.
    pub(super) fn request(&self, url: &Url, form: &TargetForm) -> Result<Vec<u8>, TargetConfigError> {
        let mut url = url.clone();
        if url.target == "/" {
            url.target.clone_from(&self.path);
        }
        let host = self.host.clone().unwrap_or_else(|| url.host_field());
        let mut usual = vec![HeaderField::new("Host", &host)?];
        usual.extend_from_slice(&self.default_fields);
        if let Some(user) = self.user.as_ref().or(url.user.as_ref()) {
            usual.push(authorization("Authorization", user)?);
        }
        let target = match form {
            TargetForm::Origin => url.target,
            TargetForm::Absolute(authorization) => {
                usual.extend(authorization.clone());
                if !url.target.starts_with('/') {
                    return Err(RequestError::Target(url.target).into());
                }
                url.to_string()
            }
        };
        let request = Request {
            method: &self.method,
            target: &target,
            version: self.version,
            keep_alive: self.keep_alive,
            default_fields: &usual,
            fields: &self.fields,
            body: &self.body,
        };
        Ok(request.bytes()?)
    }
}

/// Basic authentication (RFC 7617) with `name:password`.
pub(super) fn authorization(name: &str, user: &str) -> Result<HeaderField, RequestError> {
    let is_sound = user.contains(':') && !user.chars().any(char::is_control);
    if !is_sound {
        return Err(RequestError::User);
    }
    HeaderField::new(name, &format!("Basic {}", BASE64.encode(user.as_bytes())))
}

fn body(settings: &Settings, policy: &Policy) -> Result<Option<Vec<u8>>, TargetConfigError> {
    match (settings.text("body"), settings.text("body-file")) {
        (Some(_), Some(_)) => Err(TargetConfigError::ExclusiveOptions { one: "body", other: "body-file" }),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(path)) => read_file(policy, "body-file", path, BODY_MAX).map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads a file, if the role may read it.
pub(super) fn read_file(
    policy: &Policy,
    option: &'static str,
    path: impl Into<PathBuf>,
    at_most: Bytes,
) -> Result<Vec<u8>, TargetConfigError> {
    let path = path.into();
    policy.read(&path, at_most).map_err(|cause| TargetConfigError::File { option, path, cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &[(&str, &str)], url: &str, form: &TargetForm) -> Result<String, String> {
        let settings = settings.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        let dressing = RequestTemplate::from((&settings, &Policy::anything())).map_err(|error| error.to_string())?;
        let bytes = dressing.request(&url.parse().unwrap(), form).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn without_a_word_a_request_is_a_get_that_says_who_asks() {
        assert_eq!(
            text(&[], "https://a:8443/x?y", &TargetForm::Origin).unwrap(),
            "GET /x?y HTTP/1.1\r\nHost: a:8443\r\nUser-Agent: fathom\r\n\r\n"
        );
        assert!(
            text(&[("path", "/p?q")], "http://a", &TargetForm::Origin)
                .unwrap()
                .starts_with("GET /p?q HTTP/1.1\r\nHost: a\r\n")
        );
    }

    #[test]
    fn each_option_has_its_place() {
        let settings = [
            ("http", "1.0"),
            ("host", "h"),
            ("accept-encoding", "gzip, br"),
            ("cookie", "a=1; b=2"),
            ("user", "Aladdin:open sesame"),
            ("body", "x=1"),
            ("header", "Content-Type: text/plain\n\nX: y"),
        ];
        assert_eq!(
            text(&settings, "http://me:pw@a/", &TargetForm::Origin).unwrap(),
            "POST / HTTP/1.0\r\nHost: h\r\nConnection: Keep-Alive\r\nUser-Agent: fathom\r\nAccept-Encoding: gzip, br\r\n\
             Cookie: a=1; b=2\r\nAuthorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\nContent-Length: 3\r\n\
             Content-Type: text/plain\r\nX: y\r\n\r\nx=1"
        );
        let closing =
            text(&[("per-connection", "1"), ("method", "HEAD")], "http://me:pw@a/", &TargetForm::Origin).unwrap();
        assert_eq!(
            closing,
            "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nUser-Agent: fathom\r\nAuthorization: Basic bWU6cHc=\r\n\r\n"
        );
    }

    #[test]
    fn given_fields_alone_can_make_the_request_of_another_tool() {
        let lines = "Connection: Keep-Alive\nHost: a:80\nUser-Agent: ApacheBench/2.3\nAccept: */*";
        assert_eq!(
            text(&[("http", "1.0"), ("header", lines)], "http://a/", &TargetForm::Origin).unwrap(),
            format!("GET / HTTP/1.0\r\n{}\r\n\r\n", lines.replace('\n', "\r\n"))
        );
    }

    #[test]
    fn a_proxy_is_told_the_whole_url_and_who_asks_it() {
        let form = TargetForm::Absolute(Some(authorization("Proxy-Authorization", "p:w").unwrap()));
        assert_eq!(
            text(&[("header", "User-Agent:")], "http://me:pw@a:81/x", &form).unwrap(),
            "GET http://a:81/x HTTP/1.1\r\nHost: a:81\r\nAuthorization: Basic bWU6cHc=\r\n\
             Proxy-Authorization: Basic cDp3\r\n\r\n"
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_place() {
        let missing = "/nowhere/body";
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[("body", "a"), ("body-file", "b")], "the options `body` and `body-file` exclude one another"),
            (&[("body-file", missing)], "option `body-file`: cannot read /nowhere/body"),
            (
                &[("user", "nobody")],
                "a user or a password has a control character in it, or is not of the form name:password",
            ),
            (&[("cookie", "a\r\nb: c")], "`Cookie: a\r\nb: c` is not a header field of the form `Name: value`"),
            (&[("path", "x y")], "`x y` is not allowed in a request line"),
            (&[("method", "G T")], "`G T` is not a method: a method has letters, digits and !#$%&'*+-.^_`|~"),
        ];
        for (settings, error) in cases {
            assert_eq!(text(settings, "http://a/", &TargetForm::Origin).unwrap_err(), error);
        }
    }
}
