//! Whoever asks another process: to [import](importer) memory, or to [visit] an endpoint or event.
//!
//! Both [talk] to the other process. An [import](mod@import) keeps what was imported, an [invitation] is what an
//! endpoint hands out, and what a guest has of it. These files import all of the fabric; nothing of
//! the fabric imports them.

mod import;
mod importer;
mod invitation;
mod talk;
mod visit;

pub(in super::super) use import::Import;
pub(in super::super) use importer::import;
#[cfg(fuzzing)]
pub(super) use importer::{exporter, granted};
pub(in super::super) use invitation::{ENDPOINT, EVENT, Invitation, Invited, instance, invite};
