//! Records to summaries to findings.
