//! Runs a plan on its hosts and returns the `Run` that a report shows. Also holds the code that all commands share.

#[macro_use]
pub mod terminal;

pub mod allow;
pub mod device_programs;
pub mod execute;
pub mod exit;
pub mod files;
pub mod hosts;
pub mod inventory;
pub mod output;
pub mod progress;
pub mod registry;
pub mod script_output;
pub mod secrets;
pub mod store;
pub mod target;
