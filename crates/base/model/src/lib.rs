//! The vocabulary of fathom: the request ([`Plan`]), the task of one host ([`Role`]), the measured data ([`Record`]) and the evaluated
//! results ([`Run`]).
//!
//! Plain types with their arithmetic, their text form and their serialized form. No I/O, no clock, no threads.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod anatomy;
pub mod benchmark;
pub mod bottleneck;
pub mod comparison;
pub mod environment;
pub mod failure;
pub mod finding;
pub mod histogram;
pub mod host_port;
pub mod intervention;
pub mod inventory;
pub mod kubernetes;
pub mod link;
pub mod mac_address;
pub mod metric;
pub mod mix;
pub mod names;
pub mod plan;
pub mod probe;
pub mod reach;
pub mod record;
pub mod replay;
pub mod role;
pub mod run;
pub mod search;
pub mod settings;
pub mod shell;
pub mod steps;
pub mod summary;
pub mod targets;
pub mod time_division;
pub mod units;

pub use anatomy::{Anatomy, AnatomyPart, Part, SampledConnection, SampledUnit};
pub use benchmark::Benchmark;
pub use bottleneck::{Bottleneck, FlowSummary, SenderTime};
pub use comparison::{
    ComparedArm, Comparison, CostOutcome, Estimate, LossBound, PairedValue, Sweep, SweepCurve, SweepPoint, SweptValue,
};
pub use environment::Environment;
pub use failure::{Cause, Failure, FailureCounts, Stage};
pub use finding::{Evidence, Finding, NextStep, NoCause, Proof, ProofOutcome, Severity, Verdict, VerdictState};
pub use histogram::Histogram;
pub use intervention::{Effect, Intervention, InterventionAim};
pub use inventory::{HostRole, Inventory, InventoryHost};
pub use link::{CoreShare, Growth, GrowthPoint, Link, QueueShare, Sharing, Spread, TestedHost};
pub use mac_address::MacAddress;
pub use metric::{Better, Derivation, Layer, Metric, Unit};
pub use plan::{ComparisonPlan, DeviceCommands, OnLoss, PathPlan, Plan, TestPlan, Topology, TrialTimes};
pub use record::{HostRecord, LinkTrial, MergedRecord, Note, Record, Timeline, Trial};
pub use replay::{PairedTimes, ReplayRecord, ReplaySummary, ReplayUnit};
pub use role::{Endpoints, PeerAddresses, PeerClock, Phases, Role, Side};
pub use run::{Run, TestRun};
pub use settings::{OptionDoc, Settings, ValueKind};
pub use steps::{Example, JudgedPromise, StepKind, StepRecord, StepSummary, UsersRecord, UsersSummary, Visits};
pub use summary::{Confidence, Conservation, Limit, LimitKind, PacketQueueShare, Summary};
pub use targets::{
    EventEffect, EventRecord, EventSpan, FateBuckets, FlowConnection, FlowOutage, OutageCause, ShareFit, TargetFlow,
    TargetShare, TargetSpell, TargetsRecord, TargetsSummary,
};
pub use time_division::{TimeDivision, TimeOwner, TimeShare, TimeUse};
