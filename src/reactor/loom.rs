//! Loom models of the reactor.
