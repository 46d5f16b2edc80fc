//! What the hosts did meanwhile.
