//! A plan on its hosts: from what was asked to the Run that a report shows, and what every command of the program shares.

#[macro_use]
pub mod terminal;

pub mod allow;
pub mod device_programs;
pub mod execute;
pub mod exit;
pub mod files;
pub mod hosts;
pub mod output;
pub mod progress;
pub mod registry;
pub mod script_output;
pub mod secrets;
pub mod store;
pub mod target;
