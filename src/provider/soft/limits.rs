//! The limits of an adapter. A software device with such limits refuses what it could do itself, so
//! that a test fails before the adapter does.

use std::str::FromStr;

use super::rdma::MAX_POOLED_LEN;
use crate::device::{Caps, CrcCaps, DmaCaps, RdmaCaps, ShaCaps, SyncEventCaps};
use crate::error::{Error, ErrorKind, Result};

/// The maximum number of jobs in one queue.
const MAX_DEPTH: u32 = 1 << 20;

/// The maximum number of jobs, and of receives, of one Rdma.
const MAX_RDMA_QUEUE_SIZE: u32 = 1 << 14;

/// The maximum number of waits of one SyncEvent.
const MAX_WAITS: u32 = 1 << 16;

/// The limits of a [`Soft`](super::Soft)'s devices: a profile, or your own limits.
///
/// A job within the limits of a profile passes on the software device and on that adapter. Both
/// refuse a list or a job that exceeds a limit (`InvalidValue`) before any memory is leased. A
/// context that cannot signal an event handle is refused by every WorkQ that is not in
/// [`Mode::BusyPoll`](crate::Mode::BusyPoll) (`NotSupported`). `DevInfo::caps` returns the limits.
/// A number that is out of its range is brought into the range.
///
/// | profile | longest list | largest copy or hash | largest RDMA message | RDMA queues | waits of a SyncEvent | event-driven | source of the numbers |
/// |---|---|---|---|---|---|---|---|
/// | [`unlimited`](Limits::unlimited) | 2^32 - 1 | 2^63 - 1 | 2 GiB | 16,384 | any | yes | what the software device can do |
/// | [`bluefield2`](Limits::bluefield2) | 1 | 1 MiB | 1 GiB | 8,192 | none: the crate reads the value instead | yes | **assumed**, on the safe side |
/// | [`bluefield3`](Limits::bluefield3) | 64 | 2 MiB | 1 GiB | 8,192 | 0 to 254 | yes | reported by users, see below; NVIDIA publishes no numbers |
///
/// - NVIDIA's guides and headers give no numbers. They have a program query the device
///   (`doca_dma_get_max_buf_size`, `doca_dma_get_max_list_buf_num_elem`), since firmware may change
///   them. Query them as well, with [`Dma::caps`](crate::Dma::caps).
/// - BlueField-3: two public programs report the result of a query with DOCA 2.5 or later: one
///   reports 2,097,152 bytes, the other a list of 64. Neither names the generation of its card.
///   That both ran on a BlueField-3 is inferred from the description of the host and from the use
///   of the card's DPA. That the 2.2 library returns the same is an **assumption**.
/// - BlueField-2: no figure was found. The header defines 1 as "no lists". 1 MiB is the largest
///   file of NVIDIA's own `dma_copy` application, which would not run on a device with less. Both
///   are **assumptions**.
/// - SHA: no figure was found. That hashes have the same maximum as copies is an **assumption**.
/// - RDMA: three numbers are **assumptions** for both generations: messages of at most 1 GiB, send
///   and receive queues of at most 8,192 each, and lists as long as those of a copy.
///   `ibv_devinfo -v` shows what an adapter's port and queue pairs allow (`max_msg_sz`,
///   `max_qp_wr`), and DOCA may allow less (`doca_rdma_get_max_message_size`).
/// - SyncEvents: the guide (3.4.6.5) limits the threshold of a wait, and the value of the event, to
///   0 to 254, and calls everything else anomalous. The header limits masks to whole bytes. The
///   profile refuses a higher threshold, and fails a wait that finds a higher value
///   ([`Reason::EventTooHigh`](crate::error::Reason::EventTooHigh)). According to both sources only
///   BlueField-3 and ConnectX-7 have waits; that a BlueField-2 has none is inferred from that.
/// - That copies, hashes, CRCs, RDMA and SyncEvents signal an event handle on both generations is
///   an **assumption** too. NVIDIA's DMA samples poll, and the DOCA Core guide (3.4.5) only says
///   that some contexts cannot signal.
///
/// ```
/// use tokio_doca::soft::{Limits, Soft};
///
/// let soft = Soft::builder().limits(Limits::bluefield3()).build();
/// let device = soft.open("pf0")?;
/// assert_eq!(device.info().caps().dma.as_ref().map(|dma| dma.max_list_len), Some(64));
///
/// let own = Limits::unlimited().max_list_len(4).max_buf_size(1 << 16);
/// let soft = Soft::builder().limits(own).build();
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    max_buf_size: u64,
    max_list_len: u32,
    dma_event_driven: bool,
    sha_event_driven: bool,
    crc_event_driven: bool,
    max_message_size: u64,
    max_rdma_queue_size: u32,
    rdma_event_driven: bool,
    max_wait: Option<u64>,
    whole_byte_masks: bool,
    sync_event_event_driven: bool,
}

impl Limits {
    /// Returns the limits of the software device itself.
    pub fn unlimited() -> Limits {
        Limits {
            max_buf_size: isize::MAX as u64,
            max_list_len: u32::MAX,
            dma_event_driven: true,
            sha_event_driven: true,
            crc_event_driven: true,
            max_message_size: 1 << 31,
            max_rdma_queue_size: MAX_RDMA_QUEUE_SIZE,
            rdma_event_driven: true,
            max_wait: Some(u64::MAX),
            whole_byte_masks: false,
            sync_event_event_driven: true,
        }
    }

    /// Returns the limits that are assumed for both BlueField generations: those of RDMA, and
    /// whole-byte masks of waits.
    fn adapter() -> Limits {
        Limits::unlimited()
            .max_message_size(1 << 30)
            .max_rdma_queue_size(1 << 13)
            .whole_byte_masks(true)
    }

    /// Returns the limits of a BlueField-2, as far as they are known: 1 MiB, no lists, and no
    /// waits.
    pub fn bluefield2() -> Limits {
        let limits = Limits::adapter().max_buf_size(1 << 20).max_list_len(1);
        limits.max_wait(None)
    }

    /// Returns the limits of a BlueField-3, as far as they are known: copies of 2 MiB, lists of 64,
    /// and waits with thresholds and values of 0 to 254 ([`SyncEventCaps::max_wait`]).
    pub fn bluefield3() -> Limits {
        let limits = Limits::adapter().max_buf_size(2 << 20).max_list_len(64);
        limits.max_wait(Some(254))
    }

    /// Sets the maximum number of bytes in one copy, hash or CRC, at least 1. For CRCs,
    /// 4,294,967,295 is the highest maximum.
    #[doc(alias = "doca_dma_get_max_buf_size")]
    #[doc(alias = "doca_sha_get_max_src_buffer_size")]
    pub fn max_buf_size(mut self, bytes: u64) -> Limits {
        self.max_buf_size = bytes.clamp(1, isize::MAX as u64);
        self
    }

    /// Sets the maximum number of buffers in a list, for copies, hashes, CRCs and RDMA operations.
    /// The minimum, 1, disables lists.
    #[doc(alias = "doca_dma_get_max_list_buf_num_elem")]
    #[doc(alias = "doca_sha_get_max_list_buf_num_elem")]
    #[doc(alias = "doca_rdma_get_max_buf_chain_len")]
    pub fn max_list_len(mut self, bufs: u32) -> Limits {
        self.max_list_len = bufs.max(1);
        self
    }

    /// Sets whether a [`Dma`](crate::Dma) can signal an event handle. If not, it attaches only to a
    /// WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll). Defaults to `true`.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn dma_event_driven(mut self, supported: bool) -> Limits {
        self.dma_event_driven = supported;
        self
    }

    /// Sets whether a [`Sha`](crate::sha::Sha) can signal an event handle. If not, it attaches only
    /// to a WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll). Defaults to `true`.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn sha_event_driven(mut self, supported: bool) -> Limits {
        self.sha_event_driven = supported;
        self
    }

    /// Sets whether a [`Crc`](crate::crc::Crc) can signal an event handle. If not, it attaches only
    /// to a WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll). Defaults to `true`.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn crc_event_driven(mut self, supported: bool) -> Limits {
        self.crc_event_driven = supported;
        self
    }

    /// Sets the maximum number of bytes in one message, read or write of an Rdma, from 1 to 2 GiB.
    #[doc(alias = "doca_rdma_get_max_message_size")]
    pub fn max_message_size(mut self, bytes: u64) -> Limits {
        self.max_message_size = bytes.clamp(1, 1 << 31);
        self
    }

    /// Sets the maximum size of an Rdma's send queue and receive queue, from 1 to 16,384 jobs or
    /// receives.
    #[doc(alias = "doca_rdma_get_max_send_queue_size")]
    #[doc(alias = "doca_rdma_get_max_recv_queue_size")]
    pub fn max_rdma_queue_size(mut self, jobs: u32) -> Limits {
        self.max_rdma_queue_size = jobs.clamp(1, MAX_RDMA_QUEUE_SIZE);
        self
    }

    /// Sets whether an Rdma can signal an event handle. If not, it attaches only to a WorkQ in
    /// [`Mode::BusyPoll`](crate::Mode::BusyPoll). Defaults to `true`.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn rdma_event_driven(mut self, supported: bool) -> Limits {
        self.rdma_event_driven = supported;
        self
    }

    /// Sets the largest threshold of a SyncEvent's wait, and the largest value of the event with
    /// which a wait can succeed ([`SyncEventCaps::max_wait`]). With `None` the device cannot wait;
    /// the crate then submits jobs that read the value until it is high enough.
    #[doc(alias = "doca_sync_event_job_get_supported")]
    pub fn max_wait(mut self, threshold: Option<u64>) -> Limits {
        self.max_wait = threshold;
        self
    }

    /// Sets whether the mask of a wait must be 0, or 1, 2, 4 or 8 adjacent whole bytes.
    pub fn whole_byte_masks(mut self, only: bool) -> Limits {
        self.whole_byte_masks = only;
        self
    }

    /// Sets whether a SyncEvent can signal an event handle. If not, it attaches only to a WorkQ in
    /// [`Mode::BusyPoll`](crate::Mode::BusyPoll). Defaults to `true`.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn sync_event_event_driven(mut self, supported: bool) -> Limits {
        self.sync_event_event_driven = supported;
        self
    }

    /// Returns the capabilities of a device with these limits.
    pub(super) fn caps(&self) -> Caps {
        let (bytes, list) = (self.max_buf_size, self.max_list_len);
        let mut caps = Caps::for_dma(bytes, list, MAX_DEPTH).with_cpu_jobs(bytes, list);
        if let Some(DmaCaps { event_driven, .. }) = &mut caps.dma {
            *event_driven = self.dma_event_driven;
        }
        if let Some(ShaCaps { event_driven, .. }) = &mut caps.sha {
            *event_driven = self.sha_event_driven;
        }
        if let Some(CrcCaps { event_driven, .. }) = &mut caps.crc {
            *event_driven = self.crc_event_driven;
        }
        let (message, queue) = (self.max_message_size, self.max_rdma_queue_size);
        let mut rdma = RdmaCaps::new(message, queue, self.max_list_len);
        rdma.max_pooled_len = MAX_POOLED_LEN;
        rdma.event_driven = self.rdma_event_driven;
        caps.rdma = Some(rdma);
        caps.share_rdma = true;
        let mut sync_event = SyncEventCaps::new(MAX_WAITS);
        sync_event.max_wait = self.max_wait;
        sync_event.whole_byte_masks = self.whole_byte_masks;
        sync_event.event_driven = self.sync_event_event_driven;
        caps.sync_event = Some(sync_event);
        caps
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::unlimited()
    }
}

impl FromStr for Limits {
    type Err = Error;

    /// Returns the profile with this name: `unlimited`, `bluefield2` or `bluefield3`.
    fn from_str(name: &str) -> Result<Limits> {
        match name {
            "unlimited" => Ok(Limits::unlimited()),
            "bluefield2" => Ok(Limits::bluefield2()),
            "bluefield3" => Ok(Limits::bluefield3()),
            _ => {
                let text = format!(
                    "\"{name}\" is no profile of limits: there are unlimited, bluefield2 and bluefield3"
                );
                Err(Error::new(
                    ErrorKind::InvalidValue,
                    "Limits::from_str",
                    text,
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps_of(bytes: u64, bufs: u32, message: u64, queue: u32, wait: Option<u64>) -> Caps {
        let mut sync_event = SyncEventCaps::new(MAX_WAITS);
        sync_event.max_wait = wait;
        sync_event.whole_byte_masks = wait != Some(u64::MAX);
        let mut caps = Caps::for_dma(bytes, bufs, MAX_DEPTH).with_cpu_jobs(bytes, bufs);
        let mut rdma = RdmaCaps::new(message, queue, bufs);
        rdma.max_pooled_len = MAX_POOLED_LEN;
        caps.rdma = Some(rdma);
        caps.share_rdma = true;
        caps.sync_event = Some(sync_event);
        caps
    }

    #[test]
    fn a_profile_says_of_itself_what_it_is() {
        let all = (isize::MAX as u64, u32::MAX, 1 << 31, 1 << 14);
        for (name, (bytes, bufs, message, queue), wait) in [
            ("unlimited", all, Some(u64::MAX)),
            ("bluefield2", (1 << 20, 1, 1 << 30, 1 << 13), None),
            ("bluefield3", (2 << 20, 64, 1 << 30, 1 << 13), Some(254)),
        ] {
            let caps = name.parse::<Limits>().unwrap().caps();
            assert_eq!(caps, caps_of(bytes, bufs, message, queue, wait), "{name}");
        }
        assert_eq!(Limits::default(), Limits::unlimited());
        let error = "bluefield".parse::<Limits>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.to_string().contains("bluefield3"), "{error}");
    }

    #[test]
    fn no_limit_is_less_than_one_piece_of_one_byte() {
        let none = Limits::unlimited().max_buf_size(0).max_list_len(0);
        let none = none.max_message_size(0).max_rdma_queue_size(0);
        assert_eq!(none.caps(), caps_of(1, 1, 1, 1, Some(u64::MAX)));
        let all = Limits::unlimited().max_buf_size(u64::MAX);
        let all = all.max_message_size(u64::MAX).max_rdma_queue_size(u32::MAX);
        assert_eq!(all, Limits::unlimited());
    }

    #[test]
    fn each_kind_of_context_rings_or_not_by_itself() {
        let rings = |limits: Limits| {
            let caps = limits.caps();
            let rings = (
                caps.dma.map(|dma| dma.event_driven),
                caps.sha.map(|sha| sha.event_driven),
                caps.crc.map(|crc| crc.event_driven),
                caps.rdma.map(|rdma| rdma.event_driven),
                caps.sync_event.map(|event| event.event_driven),
            );
            [rings.0, rings.1, rings.2, rings.3, rings.4].map(Option::unwrap)
        };
        let all = Limits::unlimited;
        let but = |none: usize| std::array::from_fn(|at| at != none);
        assert_eq!(rings(all().dma_event_driven(false)), but(0));
        assert_eq!(rings(all().sha_event_driven(false)), but(1));
        assert_eq!(rings(all().crc_event_driven(false)), but(2));
        assert_eq!(rings(all().rdma_event_driven(false)), but(3));
        assert_eq!(rings(all().sync_event_event_driven(false)), but(4));
    }
}
