//! Readiness of many descriptors.
