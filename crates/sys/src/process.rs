//! Processes by pidfd: starting them in a namespace, ending them by identity.
