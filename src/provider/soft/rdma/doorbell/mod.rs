//! How queues wake each other.
//!
//! A [page] joins two queues: it shows which side is armed and which endpoints have something new,
//! and a bell wakes the peer. The endpoints of a page are its [members]; [pages] has all pages of
//! one queue. These files import `messages`, and `pages > page > members`; a page knows its queue
//! by the trait `DoorbellOwner`.

mod members;
mod page;
mod pages;

pub(super) use members::RINGS;
pub(super) use page::{Bell, DoorbellOwner, DoorbellPage, PAGE};
pub(super) use pages::DoorbellPages;
