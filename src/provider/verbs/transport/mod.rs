//! What carries work requests: completion queues ([cq]), queue pairs ([qp]), the requests ([wr]),
//! the Jobs of a queue pair on their way through its send queue ([sends]), receives of many queue
//! pairs ([srq], [receives]), and what an adapter says of those that failed ([status]).
//!
//! `core` is what all queue pairs of one WorkQ and device share. These files know neither
//! connections nor WorkQs: they import `ffi`, `adapter`, and one another downwards,
//! `sends > qp > srq > {cq, wr, receives}` and `core > srq`.

mod core;
mod cq;
mod qp;
mod quiesce;
mod receives;
mod sends;
mod srq;
pub(super) mod status;
mod wr;

pub(super) use core::Core;
pub(super) use cq::{Cq, set_nonblocking};
pub(super) use qp::{Qp, QpCaps, Retry, Route};
pub(super) use sends::{PostFailure, Sends, Work};
pub(super) use srq::{Srq, is_name};
pub(super) use status::{Failed, PeerTimeouts};
pub(super) use wr::{Chain, RecvChain, Remote, UNNAMED, fill_request, probe};
