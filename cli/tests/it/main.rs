//! The binary, as a person or a script runs it.

mod caps;
mod copy;
mod devices;
mod hash;
mod support;
mod usage;
