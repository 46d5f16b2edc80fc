//! What must hold for every cookie that a server sets.
//!
//! Shared by the fuzz target and by the test of `app` that runs the corpus.

use fathom_model::units::Nanos;
use fathom_scenario::execution::{CookieJar, CookieScope};

const NOW: Nanos = Nanos(1_700_000_000_000_000_000);
/// The most cookies that a user keeps.
const COOKIES_MAX: usize = 64;

/// Takes each line as a field `Set-Cookie`, and looks at what goes where then.
pub(crate) fn cookies(bytes: &[u8]) {
    let from = CookieScope { host: "www.shop.test", target: b"/a/b?c", is_secure: true };
    let mut jar = CookieJar::default();
    for field in bytes.split(|byte| *byte == b'\n') {
        jar.store(field.trim_ascii(), &from, NOW);
        jar.store(field, &from, NOW);
    }
    let own = going(&jar, &from, NOW);
    check(&own);
    let mut none = Vec::new();
    jar.append_matching(&from, NOW, &own, &mut none);
    assert!(none.is_empty(), "{} is said twice", none.escape_ascii());
    for (host, target) in [("www.shop.test", &b"/"[..]), ("shop.test", b"/a/b"), ("deep.www.shop.test", b"/a/b/c")] {
        let secure = going(&jar, &CookieScope { host, target, is_secure: true }, NOW);
        check(&secure);
        let plain = going(&jar, &CookieScope { host, target, is_secure: false }, NOW);
        assert!(plain.len() <= secure.len(), "{host}: {}", plain.escape_ascii());
        let later = going(&jar, &CookieScope { host, target, is_secure: true }, Nanos(u64::MAX));
        assert!(later.len() <= secure.len(), "{host}: {}", later.escape_ascii());
    }
    for host in ["bank.test", "myshop.test", "test.other", "127.0.0.1"] {
        let strange = going(&jar, &CookieScope { host, target: b"/a/b", is_secure: true }, NOW);
        assert!(strange.is_empty(), "{host} is told {}", strange.escape_ascii());
    }
}

fn going(jar: &CookieJar, to: &CookieScope<'_>, now: Nanos) -> Vec<u8> {
    let mut pairs = Vec::new();
    jar.append_matching(to, now, b"", &mut pairs);
    pairs
}

/// What goes into the head of a request must not break it.
fn check(pairs: &[u8]) {
    assert!(!pairs.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t'), "{}", pairs.escape_ascii());
    if pairs.is_empty() {
        return;
    }
    let pairs: Vec<&[u8]> = pairs.split(|byte| *byte == b';').collect();
    assert!(pairs.len() <= COOKIES_MAX, "{} cookies", pairs.len());
    for pair in pairs {
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
        assert!(pair.contains(&b'=') && !name.trim_ascii().is_empty(), "{}", pair.escape_ascii());
    }
}
