//! SIGINT, SIGTERM and their kin as a flag.
