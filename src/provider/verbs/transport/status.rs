//! The reasons of failed requests, translated from an adapter's status to the crate's.

use std::ffi::c_int;
use std::time::Duration;

use super::super::ffi::*;
use crate::device::Verb;
use crate::error::{ErrorKind, JobError, Reason};

/// The part of an endpoint that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Failed {
    /// A Job with this many bytes.
    Job(Verb, usize),
    /// A receive with a capacity of this many bytes.
    Receive(usize),
    /// A probe, which asks whether the peer exists.
    Probe,
}

/// The time limits of a peer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PeerTimeouts {
    pub(in super::super) ack: Duration,
    pub(in super::super) receive: Duration,
    /// True if the transport has no limit for a silent peer (iWARP).
    pub(in super::super) iwarp: bool,
}

/// Returns the reason of a failure, for the state Error. Returns `None` for a flush, which is not
/// the reason of a failure.
pub(in super::super) fn cause(
    what: Failed,
    status: ibv_wc_status,
    vendor: u32,
    patience: &PeerTimeouts,
) -> Option<JobError> {
    let endpoint = |reason, first| Some(JobError::endpoint(reason, first, 0));
    match (status, what) {
        (IBV_WC_WR_FLUSH_ERR, _) => None,
        // Soft-RoCE reports a message that is too long by the second status of each pair.
        (IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR, Failed::Receive(capacity)) => {
            endpoint(Reason::ReceiveExceeded, capacity as u64)
        }
        (IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR, Failed::Job(Verb::Send(_), len)) => {
            endpoint(Reason::PeerReceiveExceeded, len as u64)
        }
        (IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_ACCESS_ERR, _) => endpoint(Reason::RemoteAccess, 0),
        (IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR, _) => {
            endpoint(Reason::PeerSilent, millis(patience.ack))
        }
        (IBV_WC_RNR_RETRY_EXC_ERR, _) => endpoint(Reason::NoReceive, millis(patience.receive)),
        (IBV_WC_REM_OP_ERR | IBV_WC_REM_ABORT_ERR, _) => endpoint(Reason::PeerFailed, 0),
        (status, _) => Some(device(status, vendor)),
    }
}

impl PeerTimeouts {
    /// Returns the reason for a flush of a queue pair that this side has not ended. Over iWARP the
    /// kernel flushes when the peer's TCP connection ends, which may be seen before the event of
    /// rdma_cm. On other transports a peer that has gone causes no flush: the peer is there, and
    /// has broken the protocol.
    pub(in super::super) fn flushed(&self) -> JobError {
        JobError::of(match self.iwarp {
            true => Reason::PeerClosed,
            false => Reason::PeerFailed,
        })
    }
}

/// Returns the error of a copy that failed.
pub(in super::super) fn device(status: ibv_wc_status, vendor: u32) -> JobError {
    let kind = match status {
        IBV_WC_LOC_LEN_ERR => ErrorKind::InvalidValue,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR | IBV_WC_REM_ACCESS_ERR => {
            ErrorKind::NotPermitted
        }
        IBV_WC_FATAL_ERR | IBV_WC_GENERAL_ERR => ErrorKind::Driver,
        _ => ErrorKind::IoFailed,
    };
    JobError::device(kind, u64::from(status) << 32 | u64::from(vendor))
}

/// Returns the error for an adapter that refuses a request with `errno`.
pub(in super::super) fn refusal(errno: c_int) -> JobError {
    let kind = match errno {
        libc::ENOMEM => ErrorKind::NoMemory,
        libc::EINVAL => ErrorKind::InvalidValue,
        _ => ErrorKind::IoFailed,
    };
    JobError::device(kind, errno.unsigned_abs().into())
}

/// Returns a time in milliseconds, for the numbers of a [`JobError`].
pub(in super::super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_reason() {
        let patience = PeerTimeouts {
            ack: Duration::from_millis(500),
            receive: Duration::from_millis(70),
            iwarp: false,
        };
        let reason = |what, status| cause(what, status, 7, &patience).map(|why| why.reason());
        let send = Failed::Job(Verb::Send(None), 100);
        let write = Failed::Job(Verb::Write(None), 100);
        let receive = Failed::Receive(5);
        for (what, status, expected) in [
            (send, IBV_WC_REM_INV_REQ_ERR, Reason::PeerReceiveExceeded),
            (write, IBV_WC_REM_INV_REQ_ERR, Reason::RemoteAccess),
            (write, IBV_WC_REM_ACCESS_ERR, Reason::RemoteAccess),
            (receive, IBV_WC_LOC_LEN_ERR, Reason::ReceiveExceeded),
            (receive, IBV_WC_LOC_QP_OP_ERR, Reason::ReceiveExceeded),
            (send, IBV_WC_REM_OP_ERR, Reason::PeerReceiveExceeded),
            (send, IBV_WC_RETRY_EXC_ERR, Reason::PeerSilent),
            (Failed::Probe, IBV_WC_RETRY_EXC_ERR, Reason::PeerSilent),
            (send, IBV_WC_RNR_RETRY_EXC_ERR, Reason::NoReceive),
            (write, IBV_WC_REM_OP_ERR, Reason::PeerFailed),
            (write, IBV_WC_LOC_PROT_ERR, Reason::Device),
        ] {
            assert_eq!(reason(what, status), Some(expected), "{what:?} {status}");
        }
        assert_eq!(reason(send, IBV_WC_WR_FLUSH_ERR), None);
        let silent = cause(send, IBV_WC_RETRY_EXC_ERR, 0, &patience).unwrap();
        assert_eq!(silent.kind(), ErrorKind::ConnectionReset);
        assert!(silent.to_string().contains("500 ms"), "{silent}");
        // An unknown status keeps its numbers.
        let unknown = cause(send, 77, 9, &patience).unwrap();
        assert_eq!(unknown.vendor_code(), Some(77 << 32 | 9));
    }
}
