//! A program on a device: why the kernel refuses it, and the frames that the driver did not send for it.

use fathom_engine::Error;
use fathom_sys::{
    bpf::XdpMode,
    netlink::{Link, ethtool::CounterGrowth},
};

const EEXIST: i32 = 17;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const EOPNOTSUPP: i32 = 95;
/// The MTU above which most drivers refuse a program that sees whole frames: these must fit in a page.
const MTU_USUAL: u32 = 1500;
/// The ends of the names that drivers have for frames of programs that they could not send: veth; `virtio_net` and ena; mlx5.
const NOT_SENT: &[&str] = &["xdp_tx_errors", "xdp_tx_drops", "xdp_tx_full", "xdp_tx_err"];

/// Counts frames of programs that the driver of a device does not send from now on; `None` if it does not count them.
pub(crate) fn losses(device: &str) -> Option<CounterGrowth> {
    CounterGrowth::open(device, NOT_SENT)
}

/// Why the kernel does not put a program on the device. `otherwise` is what helps beside the device itself.
pub(crate) fn refused(link: &Link, mode: XdpMode, otherwise: &str, cause: fathom_sys::Error) -> Error {
    let name = &link.name;
    let unsupported = |what: String, hint: String| Error::Unsupported { what, hint: Some(hint) };
    match cause.errno() {
        Some(EOPNOTSUPP) => unsupported(
            format!("the driver of {name} has no native XDP"),
            format!("take a device whose driver has it, such as virtio_net, ice, mlx5 or veth, or {otherwise}"),
        ),
        Some(EBUSY | EEXIST) => unsupported(
            format!("{name} has an XDP program already"),
            format!(
                "end the program that put it there, maybe another run (bpftool link); one without a link: ip link set dev {name} xdp off"
            ),
        ),
        Some(code) if code == ERANGE || code == EINVAL && link.mtu_bytes > MTU_USUAL => unsupported(
            format!(
                "the MTU of {name}, or of the other end of a veth, is too large for XDP: a frame has to fit in a page"
            ),
            format!("ip link set {name} mtu {MTU_USUAL}, at both ends of a veth"),
        ),
        _ => Error::system(format!("run a {mode} XDP program on {name}"), "CAP_BPF and CAP_NET_ADMIN", cause),
    }
}
