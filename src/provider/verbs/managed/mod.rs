//! Connections that rdma_cm makes, between addresses: how one continues by events ([managed]), its
//! steps ([attempt]), and a listener with what peers ask for ([offered]).
//!
//! These files import `ffi`, `adapter`, `cm`, `transport` and `connection`.

mod attempt;
#[expect(
    clippy::module_inception,
    reason = "the noun that the room is named after"
)]
mod managed;
mod offered;

pub(super) use offered::{Listener, Offered};
