//! A complete device in software. It runs anywhere, and is the default.
//!
//! Copies up to 256 KiB and hashes up to 8 KiB run inside the submission, which is the fastest way
//! at these sizes. Larger jobs go to an *engine*, a thread of the device, so that the task's thread
//! stays free. The engine's thread is named after the device (`doca-pf0`), and
//! [`Device::engine_time`](crate::Device::engine_time) returns how long the engines have worked. An
//! engine spins for a short time after its last job, and then sleeps until the next one.
//!
//! # Environment variables
//!
//! These variables configure the default software device of a program without changes to its code.
//! In code, [`Soft::builder`] makes a device with all these settings, for the tests of your own
//! service.
//!
//! | variable | effect |
//! |---|---|
//! | `TOKIO_DOCA_SOFT=host\|dpu` | which devices there are: the host's (the default), or the DPU's |
//! | `TOKIO_DOCA_SOFT_CARD=NAME` | the serial number of the card: processes whose cards have the same serial number are the two sides of one card ([`Topology`]) |
//! | `TOKIO_DOCA_SOFT_DEFER=1` | jobs never complete during submission, as on real hardware. Run your tests with it to catch code that reuses a buffer too early |
//! | `TOKIO_DOCA_SOFT_LIMITS=bluefield2\|bluefield3` | the device refuses what that adapter would ([`Limits`] has the numbers) |
//! | `TOKIO_DOCA_SOFT_FAULTS="pass*3 error:IoFailed"` | a script of faults, an entry for each job ([`Faults::push_script`] describes the format) |
//! | `TOKIO_DOCA_SOFT_SOCKET=FOLDER` | peers in another network namespace reach exports and endpoints by a socket in that folder |

//   submit ----> ring of jobs of a queue ----> engine: copies ----> ring of completions ----> reap
//
// | folder | what lives there | what it imports of the others |
// |---|---|---|
// | this one | the provider, its devices and queues; faults, counters, copies, bells | all |
// | `topology` | which devices there are | nothing |
// | `fabric` | how processes meet and map each other's memory | nothing |
// | `engine` | threads that do what is not done inline | faults, copies, what queues share |
// | `ports` | which endpoints and sync events have something to do | `rdma`, faults, counters, what queues share |
// | `rdma` | endpoints, and remote operations between them | `fabric`, `ports`, faults, counters, copies, bells |
// | `event` | sync events | `fabric`, `ports`, faults, bells |

mod bell;
mod copy;
mod counter;
mod device;
mod event;
mod fabric;
mod fault;
mod limits;
#[cfg(all(test, tokio_doca_loom))]
mod loom;
mod options;
mod ports;
mod provider;
mod queue;
mod rdma;
mod script;
mod shared;
mod topology;

mod engine;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub use fabric::set_socket_path;
pub use fault::{Fault, Faults, Hold};
pub use limits::Limits;
pub use provider::{Soft, SoftBuilder};
pub use topology::{Function, Port, Topology, View};
