//! Which cores a thread may run on.
