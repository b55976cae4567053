//! Sync events: a 64-bit counter that two processors change, read and wait for.

mod blocking;
mod builder;
mod context;
mod import;
mod operations;
mod request;
mod wait;

pub use blocking::BlockingSyncEvent;
pub use builder::{Location, SyncEventBuilder};
pub use context::SyncEvent;
pub use import::{ImportedSyncEvent, SyncEventImport};
pub(super) use request::EventRequest;
pub use request::SyncEventOp;
pub use wait::SyncEventWait;
