//! What the proxy answers to those who visit it: where its certificate is.

use hyper::{Response, StatusCode};

use super::answers::{ProxyBody, text, with_type};
use crate::certificates::CertificateAuthority;

const CERTIFICATE_MEDIA: &str = "application/x-x509-ca-cert";

const PAGE: &str = "\
<!doctype html>
<meta charset=utf-8>
<title>fathom record</title>
<h1>fathom record</h1>
<p>This is a proxy that records the requests of a browser and the answers of servers.
Set it as the HTTP and HTTPS proxy of the browser.
<p>For https, the browser has to trust the certificate of this recorder, and nobody else should:
<a href=/ca.crt>ca.crt</a> (browsers, phones), <a href=/ca.pem>ca.pem</a> (curl, programs).
<p>How to trust it, and how to end that: <code>fathom record ca</code>
";

/// Answers a request to the proxy itself.
pub(super) fn page(authority: &CertificateAuthority, path: &str) -> Response<ProxyBody> {
    match path {
        "/" => with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE),
        "/ca.crt" => with_type(StatusCode::OK, CERTIFICATE_MEDIA, authority.der().to_vec()),
        "/ca.pem" => with_type(StatusCode::OK, CERTIFICATE_MEDIA, authority.certificate_pem()),
        _ => text(StatusCode::NOT_FOUND, "this is the proxy of fathom record, and its page is /\n"),
    }
}
