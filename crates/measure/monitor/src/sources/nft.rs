//! Packets dropped by rules of the packet filter: `nf_tables` by netlink, because `/proc` does not have them.
//!
//! Only rules with counters in base chains are read: a set of thousands of rules that these jump to would take longer to read
//! than a device under test can spare. Works only on the running system: another root has nothing to query.

use std::{io, path::Path};

use fathom_model::names::host;
use fathom_sys::{
    Error,
    netlink::nftables::{Nftables, RuleFate},
};

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Nft(Socket<Nftables>);

impl Nft {
    pub(super) const fn new() -> Self {
        Self(Socket::new(Nftables::open))
    }
}

/// Returns why the rules were not listed, and who may list them.
fn unlisted(error: Error) -> io::Error {
    let error = cause(error);
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    io::Error::new(error.kind(), format!("{error}: only root, or a program with CAP_NET_ADMIN, may list rules"))
}

impl Source for Nft {
    fn name(&self) -> &'static str {
        "nft"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::NFT_DROPPED]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(nft) = self.0.below(root)? else { return Ok(()) };
        let chains = nft.base_chains().map_err(unlisted)?;
        // Without rules the count is known to be zero.
        out.value(host::NFT_DROPPED, "", 0);
        for chain in chains {
            for rule in nft.counted(&chain).map_err(unlisted)? {
                if rule.fate == RuleFate::Dropped {
                    out.value(host::NFT_DROPPED, &format!("{chain} {}", rule.handle), rule.n_packets);
                }
            }
        }
        Ok(())
    }
}
