//! The options for connections of scripted users: rows for the tables of their kinds.

use fathom_model::OptionDoc;

use crate::{
    kinds::options::{BATCH, BATCH_WAIT, PACING, REACTOR, THREADS, TIMEOUT, concat_options},
    target::options::{CONNECTING, REQUEST, TLS},
};

/// The options of threads, timeouts and I/O.
const ENGINE: [OptionDoc; 6] = [THREADS, TIMEOUT, REACTOR, BATCH, BATCH_WAIT, PACING];

/// The options of a kind of scripted users besides its own: the servers, the connections, and the engine.
///
/// A kind appends them to its own rows with [`concat_options`].
pub const OPTIONS: [OptionDoc; 1 + ENGINE.len() + CONNECTING.len() + TLS.len()] =
    concat_options(&[&[URL], &ENGINE, &CONNECTING, &TLS]);

/// The servers, the same row as for other requests.
const URL: OptionDoc = REQUEST[0];
