//! Tests the binary as a person or a script runs it.

mod bench;
mod bench_compare;
mod bench_html;
mod bench_peer;
mod caps;
mod check;
mod check_peer;
mod copy;
mod devices;
mod doctor;
mod doctor_odd;
mod hash;
mod support;
mod system;
mod transfer;
mod usage;
