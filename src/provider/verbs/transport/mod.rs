//! The objects that carry work requests:
//!
//! - [cq] is a completion queue and its channel.
//! - [qp] is a queue pair, and [quiesce] ends it.
//! - [wr] builds work requests.
//! - [sends] holds the Jobs of a queue pair, on their way through its send queue.
//! - [srq] and [receives] hold receives that many queue pairs share.
//! - [status] translates the reasons of failures that an adapter reports.
//!
//! `core` is the state that all queue pairs of one WorkQ and device share. These files know neither
//! connections nor WorkQs. They import `ffi`, `adapter` and `cm`, and one another downwards,
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
pub(super) use cq::Cq;
pub(super) use qp::{Qp, QpCaps, Retry, Route};
pub(super) use sends::{PostFailure, Sends, Work};
pub(super) use srq::{Srq, is_name};
pub(super) use status::{Failed, PeerTimeouts};
pub(super) use wr::{Chain, RecvChain, Remote, UNNAMED, probe};
