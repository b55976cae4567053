//! Connections between addresses, which rdma_cm makes: their events ([managed]), their steps
//! ([attempt]), and a listener with the requests of peers ([offered]).
//!
//! These files import `ffi`, `adapter`, `cm`, `transport` and `connection`.

mod attempt;
#[expect(
    clippy::module_inception,
    reason = "the noun that the module is named after"
)]
mod managed;
mod offered;

pub(super) use offered::{Listener, Offered};
