//! The WorkQ itself: the state that its handles share, its devices, and the turn that reaps.
//!
//! `handle` has the public type and its builder, and `shared` the state behind it. `attach`
//! attaches a context to a WorkQ, and `queues` has the queues of the attached devices. `submit` has
//! all calls that hand memory to a device or take it back. `turn` collects completions, `event`
//! handles and requests events, and `notify` decides which waiters in line are notified. `full` and
//! `pause` handle a device that refuses jobs. `shutdown` waits for the last job; `counts` and
//! `stats` have the statistics.
//!
//! These files import `tables`, `slots` and `events`. Those that submit, wait or poll also import
//! `shared`, which imports only `counts`, `pause` and `queues` of this folder.

// `handle` comes first, since rustdoc shows the methods of a type in the order of the modules.
mod handle;

mod attach;
mod counts;
mod event;
mod full;
mod notify;
mod pause;
mod poll;
mod queues;
mod shared;
mod shutdown;
mod stats;
mod submit;
mod turn;

pub(in crate::reactor) use full::LaunchError;
pub use handle::{WorkQ, WorkQBuilder};
pub(in crate::reactor) use shared::Shared;
pub(crate) use shared::{Attachment, HasAttachment};
pub use shutdown::Shutdown;
pub use stats::Stats;
pub(crate) use submit::Prepared;
