//! The vocabulary of fathom: what is asked ([`Plan`]), what happened ([`Record`]), what it means ([`Run`]).
//!
//! Plain types with their arithmetic, their text and their serialised form. No I/O, no clock, no threads.

pub mod units;
