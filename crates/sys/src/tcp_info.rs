//! What the kernel knows of a TCP connection.
