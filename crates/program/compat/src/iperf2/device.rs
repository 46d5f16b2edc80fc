//! The name of the interface towards an address, which `-e` shows.

use std::net::IpAddr;

use fathom_sys::netlink::Netlink;

/// Returns the name of the interface; `None` if the kernel does not say.
pub(super) fn towards(address: IpAddr) -> Option<String> {
    let index = Netlink::open().ok()?.next_hop(address).ok()?.link;
    let folder = std::fs::read_dir("/sys/class/net").ok()?;
    folder.filter_map(Result::ok).find_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("ifindex")).ok()?;
        (text.trim().parse() == Ok(index)).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}
