//! The vocabulary: units, plans, roles, records, summaries, findings, runs.
