//! The formats that servers write unless they are told otherwise, and the usual additions to them.

use std::sync::LazyLock;

use super::pattern::{Escaping, Pattern};

/// What Debian's Apache and others write before the common format.
const PREFIXES: [&str; 3] = ["$server_name:$server_port ", "$server_name ", ""];

/// The common format (CLF) of nginx and of Apache. Both names of its time are used: with a duration in seconds it is nginx's, which
/// writes the time of the end; with one in microseconds (`%D`) it is Apache's, which writes that of the begin.
const COMMON_NGINX: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent"#;
const COMMON_BEGIN: &str = r#"$remote_addr - $remote_user [$start_time] "$request" $status $body_bytes_sent"#;

/// What follows in nginx's and Apache's formats: the combined format, and times and clients after it. Those of most use come first.
const ENDS: [(&str, &str); 12] = [
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent" "$http_x_forwarded_for" $request_time"#),
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent" $request_time "$http_x_forwarded_for""#),
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent" "$http_x_forwarded_for""#),
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent" $request_time"#),
    (COMMON_BEGIN, r#" "$http_referer" "$http_user_agent" $request_time_us"#),
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent" $request_time $rest"#),
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent""#),
    (COMMON_NGINX, r#" "$http_referer" "$http_user_agent" $rest"#),
    (COMMON_NGINX, " $request_time"),
    (COMMON_BEGIN, " $request_time_us"),
    (COMMON_NGINX, ""),
    (COMMON_NGINX, " $rest"),
];

/// Traefik's variant of the combined format.
const TRAEFIK: &str = r#" "$http_referer" "$http_user_agent" $number "$router" "$server" ${request_time_ms}ms"#;

/// Envoy's own format, with and without what Istio adds.
const ENVOY: [&str; 2] = [
    r#"[$start_time] "$request" $status $flags $request_body_bytes $body_bytes_sent $request_time_ms $upstream "$forwarded_for" "$http_user_agent" "$id" "$http_host" "$server""#,
    r#"[$start_time] "$request" $status $flags $details $termination "$failure" $request_body_bytes $body_bytes_sent $request_time_ms $upstream "$forwarded_for" "$http_user_agent" "$id" "$http_host" "$server" $cluster $upstream_local $local $remote_addr $name $route"#,
];

/// All formats of text, those that say the most first.
pub(super) static FORMATS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let pattern = |text: &str, escaping| Pattern::new(text, escaping).expect("a format of a server is one");
    let mut formats: Vec<_> = ENVOY.iter().map(|text| pattern(text, Escaping::None)).collect();
    formats.push(pattern(&format!("{COMMON_BEGIN}{TRAEFIK}"), Escaping::None));
    for (common, end) in ENDS {
        for prefix in PREFIXES {
            formats.push(pattern(&format!("{prefix}{common}{end}"), Escaping::Backslash));
        }
    }
    formats
});
