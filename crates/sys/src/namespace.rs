//! Network and user namespaces: making, entering and leaving them.
