//! Loom models of the memory side.
