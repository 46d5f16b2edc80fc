//! Links, addresses and routes through rtnetlink.
