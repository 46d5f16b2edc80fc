//! Topologies in network namespaces.
