//! Who is woken, and what for.
//!
//! A [page] joins two queues: it says who is armed and which endpoints have something new, and a
//! bell wakes the peer. [pages] are those of one queue. A [ready_set] holds the endpoints of a queue
//! that have something to do, in [flags] that any thread sets. These files import `messages`, and
//! one another downwards, `pages > page` and `ready_set > flags`; a page knows its queue by the
//! trait `DoorbellOwner`.

mod flags;
mod page;
mod pages;
mod ready_set;

pub(super) use flags::FLAGS;
#[cfg(all(test, tokio_doca_loom))]
pub(super) use flags::Flags;
pub(super) use page::{Bell, DoorbellOwner, DoorbellPage, PAGE, RINGS};
pub(super) use pages::DoorbellPages;
pub(super) use ready_set::ReadySet;
