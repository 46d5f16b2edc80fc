//! Sockets and their options.
