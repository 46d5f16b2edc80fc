//! Errors of exhausted ports and descriptors.

use fathom_engine::Error;
use fathom_sys::ExhaustedResource;

/// A system error, with a hint if ports or descriptors have run out.
pub(crate) fn resource_error(what: &str, cause: fathom_sys::Error) -> Error {
    let hint = match cause.shortage() {
        Some(ExhaustedResource::Address) if cause.call.starts_with("connect") => {
            "no local port is left for this pair of addresses; set --ports or --source, widen \
             net.ipv4.ip_local_port_range, or wait a minute for those in TIME-WAIT"
        }
        Some(ExhaustedResource::Address) => "the address is not one of this host's; see `ip address`",
        Some(ExhaustedResource::Descriptors) => {
            "this process has no descriptors left; raise the limit (ulimit -n), or ask for fewer flows"
        }
        Some(ExhaustedResource::DescriptorsOfHost) => {
            "this host has no descriptors left; raise fs.file-max, or ask for fewer flows"
        }
        None => return Error::System { what: what.to_owned(), cause },
    };
    let what = format!("cannot {what}: {cause}: {}", cause.source);
    Error::Unsupported { what, hint: Some(hint.to_owned()) }
}
