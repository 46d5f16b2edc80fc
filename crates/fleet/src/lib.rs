//! Hosts: a host is a byte stream to an agent.
