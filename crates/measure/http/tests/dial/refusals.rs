//! Errors are found before the load, with their place and the remedy.

use std::fs;

use fathom_http::target::TargetConfig;
use fathom_model::Settings;

use crate::server::Issuer;

/// The message and the hint, as the program shows them.
fn refused(options: &[(&str, &str)]) -> (String, String) {
    let settings = options.iter().fold(Settings::default(), |settings, (name, value)| settings.with(name, *value));
    let error = fathom_engine::Error::from(
        TargetConfig::prepare((&settings, &fathom_sys::policy::Policy::anything()), None, None).unwrap_err(),
    );
    (error.to_string(), error.hint().unwrap_or_default().to_owned())
}

#[test]
fn options_that_exclude_one_another_are_named() {
    let url = ("url", "https://127.0.0.1:1/");
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("unix", "/x"), ("proxy", "http://a:1")], "the options `unix` and `proxy` exclude one another"),
        (&[("unix", "/x"), ("connect-to", "a:1")], "the options `unix` and `connect-to` exclude one another"),
        (&[("unix", "/x"), ("source", "127.0.0.1")], "the options `unix` and `source` exclude one another"),
        (&[("connect-to", "a:1"), ("proxy", "http://a:1")], "the options `connect-to` and `proxy` exclude one another"),
        (&[("insecure", "true"), ("ca", "/x")], "the options `insecure` and `ca` exclude one another"),
        (&[("insecure", "true"), ("client-key", "/x")], "the option `client-key` needs `client-cert`"),
    ];
    for (options, expected) in cases {
        assert_eq!(refused(&[&[url], options].concat()).0, expected);
    }
}

#[test]
fn what_an_option_does_not_take_is_named() {
    let url = ("url", "https://127.0.0.1:1/");
    let cases: [(&[(&str, &str)], &str); 7] = [
        (&[("url", "gopher://a")], "option `url`, line 1: `gopher://a` does not begin with http:// or https://"),
        (
            &[url, ("proxy", "https://a")],
            "option `proxy` takes the address of a proxy that begins with http://, not `https://a`",
        ),
        (&[url, ("proxy", "a:1")], "option `proxy`: `a:1` does not begin with http:// or https://"),
        (
            &[url, ("source", "10.0.0.0/33")],
            "option `source` takes addresses and networks such as 10.0.0.2,10.0.1.0/24, not `10.0.0.0/33`",
        ),
        (&[url, ("source", "192.0.2.7")], "option `source`: cannot send from 192.0.2.7"),
        (&[url, ("sni", "a b")], "option `sni` takes a host name or an address that a certificate can have, not `a b`"),
        (
            &[url, ("alpn", "h2,,")],
            "option `alpn` takes names such as http/1.1, separated by commas, or none, not `h2,,`",
        ),
    ];
    for (options, expected) in cases {
        let (text, _) = refused(options);
        assert!(text.starts_with(expected), "{text}");
    }
    assert!(refused(&[url, ("source", "192.0.2.7")]).1.contains("ip address add"));
}

#[test]
fn a_name_without_address_and_files_that_cannot_be_read_are_named() {
    let (text, _) = refused(&[("url", "http://nowhere.invalid/")]);
    assert_eq!(text, "cannot find the address of `nowhere.invalid`");
    let url = ("url", "https://127.0.0.1:1/");
    for option in ["body-file", "ca", "client-cert"] {
        let (text, _) = refused(&[url, (option, "/nowhere/file")]);
        assert_eq!(text, format!("cannot read /nowhere/file for the option `{option}`"));
    }
    let (text, _) = refused(&[url, ("unix", "/nowhere/socket")]);
    assert_eq!(text, "cannot read /nowhere/socket for the option `unix`");
}

#[test]
fn files_without_what_they_must_hold_are_named() {
    let issuer = Issuer::new();
    let [certificate, _] = issuer.client();
    let another = Issuer::new();
    let [_, key_of_another] = another.client();
    let empty = issuer.path("empty.pem").display().to_string();
    let broken = issuer.path("broken.pem").display().to_string();
    fs::write(&empty, "nothing\n").unwrap();
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let url = ("url", "https://127.0.0.1:1/");
    let cases: [(&[(&str, &str)], String); 4] = [
        (&[("ca", &empty)], format!("option `ca`: there is no certificate in {empty}")),
        (&[("ca", &broken)], "option `ca`: a certificate cannot be used (".to_owned()),
        (&[("client-cert", &certificate)], format!("option `client-cert`: there is no key in {certificate}")),
        (
            &[("client-cert", &certificate), ("client-key", &key_of_another)],
            "option `client-cert`: the certificate cannot be used with its key (".to_owned(),
        ),
    ];
    for (options, expected) in cases {
        let options = [&[url, ("insecure", "false")], options].concat();
        let (text, hint) = refused(&options);
        assert!(text.starts_with(&expected), "{text}");
        assert!(hint.contains("PEM"), "{hint}");
    }
}
