//! Sends the requests of a recording again.
//!
//! A [`recording::Recording`] is read before the start: its requests lie on disk, and in memory is when each is due and which one follows
//! it on its connection. [`sessions::Sessions`] are the users of the load driver who send them, one per recorded connection.

mod choice;
mod compare;
mod kind;
mod live;
mod metrics;
mod options;
mod recording;
mod request;
mod results;
mod rewrite;
mod sessions;
mod source;
mod spooled_exchange;

pub use self::{kind::HttpReplay, live::LiveReplay};
