//! What an adapter says of a request that failed, in our words.

use std::ffi::c_int;
use std::time::Duration;

use super::super::ffi::*;
use crate::device::Verb;
use crate::error::{ErrorKind, JobError, Reason};

/// What else of an Endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Failed {
    /// A Job of so many bytes.
    Job(Verb, usize),
    /// A receive with room for so many bytes.
    Receive(usize),
    /// A look whether the peer is there.
    Probe,
}

/// How long a peer was asked.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PeerTimeouts {
    pub(in super::super) ack: Duration,
    pub(in super::super) receive: Duration,
    /// The transport gives nobody up (iWARP).
    pub(in super::super) iwarp: bool,
}

/// Why, as the state Error names it; `None` if it was flushed, which is no cause.
pub(in super::super) fn cause(
    what: Failed,
    status: ibv_wc_status,
    vendor: u32,
    patience: &PeerTimeouts,
) -> Option<JobError> {
    let endpoint = |reason, first| Some(JobError::endpoint(reason, first, 0));
    match (status, what) {
        (IBV_WC_WR_FLUSH_ERR, _) => None,
        // Soft-RoCE has its own idea of a message that is too long: the second of each pair.
        (IBV_WC_LOC_LEN_ERR | IBV_WC_LOC_QP_OP_ERR, Failed::Receive(room)) => {
            endpoint(Reason::ReceiveExceeded, room as u64)
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
    /// Why a queue pair has flushed, if this side has not ended it. Over iWARP the kernel does so
    /// as the peer's TCP connection ends, which may be seen before rdma_cm's word of it. Elsewhere
    /// a peer that has gone is silent: one that is there has broken a rule.
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

/// Returns why a request was not taken.
pub(in super::super) fn refusal(errno: c_int) -> JobError {
    let kind = match errno {
        libc::ENOMEM => ErrorKind::NoMemory,
        libc::EINVAL => ErrorKind::InvalidValue,
        _ => ErrorKind::IoFailed,
    };
    JobError::device(kind, errno.unsigned_abs().into())
}

/// A time, as a cause has it.
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
        // What nobody knows keeps its numbers.
        let unknown = cause(send, 77, 9, &patience).unwrap();
        assert_eq!(unknown.vendor_code(), Some(77 << 32 | 9));
    }
}
