//! Many datagrams in one system call.
