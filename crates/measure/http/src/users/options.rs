//! What people may say of the connections of scripted users: rows for the tables of their kinds.

use fathom_model::OptionDoc;

use crate::{
    kinds::options::{BATCH, BATCH_WAIT, PACING, REACTOR, THREADS, TIMEOUT, concat_options},
    target::options::{CONNECTING, REQUEST, TLS},
};

/// Which thread asks, and when is given up.
const ENGINE: [OptionDoc; 6] = [THREADS, TIMEOUT, REACTOR, BATCH, BATCH_WAIT, PACING];

/// The options of a kind of scripted users beside its own: the servers, how they are reached, and how the engine works.
///
/// A kind joins them to its own rows with [`concat_options`].
pub const OPTIONS: [OptionDoc; 1 + ENGINE.len() + CONNECTING.len() + TLS.len()] =
    concat_options(&[&[URL], &ENGINE, &CONNECTING, &TLS]);

/// The servers, in the words of all that asks.
const URL: OptionDoc = REQUEST[0];
