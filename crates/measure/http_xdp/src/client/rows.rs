//! The rows of connections as user space reads and writes them, while the program does the same.
//!
//! The state decides whose a row is. It is stored last, so that who sees a new state sees the rest of the row too.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::machine::{Connection, ROW_WORDS, STATE_WORD, TAKEN, TAKEN_MASK, TAKEN_WORD};

/// A row of the shared array.
pub(super) type Row = [AtomicU64; ROW_WORDS];

/// The words of what a request or a FIN on an idle connection changes, besides its state: numbers and times. The program may note meanwhile
/// in another word that the server has closed.
const STARTED_WORDS: usize = 4;

/// The connection in a row. It may be of two moments if the program is just writing it.
pub(super) fn read(row: &Row) -> Connection {
    let state = row[STATE_WORD].load(Acquire);
    let mut words = [0; ROW_WORDS];
    for (word, shared) in words.iter_mut().zip(row) {
        *word = shared.load(Relaxed);
    }
    words[STATE_WORD] = state;
    Connection::from_row(&words)
}

/// Opens a closed connection.
pub(super) fn open(row: &Row, connection: &Connection) {
    write(row, connection, ROW_WORDS);
}

/// Starts something on an idle connection.
pub(super) fn start(row: &Row, connection: &Connection) {
    write(row, connection, STARTED_WORDS);
}

fn write(row: &Row, connection: &Connection, n_words: usize) {
    let words = connection.row();
    for (idx, (shared, word)) in row.iter().zip(words).enumerate().take(n_words) {
        if idx != STATE_WORD && idx != TAKEN_WORD {
            shared.store(word, Relaxed);
        }
    }
    row[STATE_WORD].store(words[STATE_WORD], Release);
}

/// Writes a connection that is away, which belongs to user space; the program goes on with one that is back.
pub(super) fn write_away(row: &Row, connection: &Connection) {
    open(row, connection);
    if !connection.is_away {
        row[TAKEN_WORD].store(0, Release);
    }
}

/// Takes a row from the program, which sees it with its next segment.
pub(super) fn take(row: &Row) {
    row[TAKEN_WORD].fetch_or(TAKEN, Release);
}

/// Gives a row back as it is.
pub(super) fn give_back(row: &Row) {
    row[TAKEN_WORD].fetch_and(!TAKEN_MASK, Release);
}

/// Gives a row back with a closed connection.
pub(super) fn give_back_closed(row: &Row) {
    row[TAKEN_WORD].store(0, Release);
}
