//! What a device can be asked to do, of any library: one question for all of them.

use super::algorithm::Algorithm;
use super::caps::{Caps, RdmaKind, SyncEventKind};

/// A kind of Job, of any library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobKind {
    /// A copy, by a [`Dma`](crate::Dma).
    #[doc(alias = "DOCA_DMA_JOB_MEMCPY")]
    Copy,
    /// A hash of one message, by a [`Sha`](crate::sha::Sha).
    Sha(Algorithm),
    /// A part of a message that is hashed by a [`ShaSession`](crate::sha::ShaSession).
    ShaPart(Algorithm),
    /// A remote operation, by an [`Rdma`](crate::Rdma).
    Rdma(RdmaKind),
    /// A job of a [`SyncEvent`](crate::sync_event::SyncEvent).
    SyncEvent(SyncEventKind),
    /// A Job of the provider's own, by an [`Accel`](crate::accel::Accel).
    Accel(u32),
}

impl Caps {
    /// Whether the device does Jobs of this kind; how large they may be, the entry of the library says.
    #[doc(alias = "doca_dma_job_get_supported")]
    #[doc(alias = "doca_sha_job_get_supported")]
    #[doc(alias = "doca_rdma_job_get_supported")]
    #[doc(alias = "doca_sync_event_job_get_supported")]
    pub fn supports(&self, kind: JobKind) -> bool {
        let (sha, rdma, accel) = (self.sha.as_ref(), self.rdma.as_ref(), self.accel.as_ref());
        match kind {
            JobKind::Copy => self.dma.is_some(),
            JobKind::Sha(algorithm) => sha.is_some_and(|sha| sha.supports(algorithm)),
            JobKind::ShaPart(algorithm) => {
                sha.is_some_and(|sha| sha.sessions && sha.supports(algorithm))
            }
            JobKind::Rdma(kind) => rdma.is_some_and(|rdma| rdma.supports(kind)),
            JobKind::SyncEvent(kind) => {
                let sync_event = self.sync_event.as_ref();
                sync_event.is_some_and(|sync_event| sync_event.supports(kind))
            }
            JobKind::Accel(opcode) => accel.is_some_and(|accel| accel.supports(opcode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{AccelCaps, RdmaCaps, ShaCaps, SyncEventCaps};

    #[test]
    fn each_library_answers_for_its_own() {
        let all = [
            JobKind::Copy,
            JobKind::Sha(Algorithm::Sha256),
            JobKind::ShaPart(Algorithm::Sha256),
            JobKind::Rdma(RdmaKind::Send),
            JobKind::Rdma(RdmaKind::FetchAdd),
            JobKind::Accel(7),
            JobKind::SyncEvent(SyncEventKind::Add),
            JobKind::SyncEvent(SyncEventKind::WaitGt),
        ];
        let of = |caps: &Caps| all.map(|kind| caps.supports(kind));
        assert_eq!(of(&Caps::default()), [false; 8]);
        let mut caps = Caps::for_dma(1, 1, 1);
        assert_eq!(
            of(&caps),
            [true, false, false, false, false, false, false, false]
        );
        caps.sha = Some(ShaCaps::on_cpu(1, 1));
        caps.rdma = Some(RdmaCaps::new(1, 1, 1));
        caps.accel = Some(AccelCaps::new([7], 1, 1));
        caps.sync_event = Some(SyncEventCaps::new(1));
        assert_eq!(of(&caps), [true; 8]);
        if let Some(sha) = &mut caps.sha {
            sha.sessions = false;
        }
        if let Some(rdma) = &mut caps.rdma {
            rdma.atomics = false;
        }
        if let Some(sync_event) = &mut caps.sync_event {
            sync_event.max_wait = None;
        }
        assert_eq!(
            of(&caps),
            [true, true, false, true, false, true, true, false]
        );
    }
}
