//! What a software device refuses although it could do it: the limits of an adapter, so that a test meets them first.

use std::str::FromStr;

use crate::device::{Caps, DmaCaps, ShaCaps};
use crate::error::{Error, ErrorKind, Result};

/// The most Jobs that one queue takes.
const MAX_DEPTH: u32 = 1 << 20;

/// The limits of a [`Soft`](super::Soft)'s devices: a profile, or your own.
///
/// What is within them passes here and on the adapter; what is beyond them is refused here as there, with `InvalidValue`
/// (a list or a size) or `NotSupported` (an event-driven WorkQ), before anything is leased. `DevInfo::caps` says them.
///
/// | profile | longest list | largest copy or hash | event-driven | where the numbers come from |
/// |---|---|---|---|---|
/// | [`unlimited`](Limits::unlimited) | 2^32 - 1 | 2^63 - 1 | yes | what the software device can do |
/// | [`bluefield2`](Limits::bluefield2) | 1 | 1 MiB | yes | **assumed**, on the safe side |
/// | [`bluefield3`](Limits::bluefield3) | 64 | 2 MiB | yes | reported by users, see below; NVIDIA publishes no numbers |
///
/// - NVIDIA's guides and headers give no numbers, and have a program ask the device (`doca_dma_get_max_buf_size`,
///   `doca_dma_get_max_list_buf_num_elem`): firmware may change them. Ask too, by [`Dma::caps`](crate::Dma::caps).
/// - BlueField-3: two public programs report what a query answered them, one 2,097,152 bytes, the other a list of 64, with DOCA
///   2.5 or later. Neither names the generation: that both ran on a BlueField-3 is inferred (from the host's description, and
///   from the use of its DPA), and that the 2.2 library answers the same is an **assumption**.
/// - BlueField-2: no figure was found. 1 is what the header defines as "no lists", and 1 MiB the largest file of
///   NVIDIA's own `dma_copy` application: a device that has less would not run it. Both are **assumptions**.
/// - Nothing was found of the SHA engine: that it takes as much as a copy is an **assumption**.
/// - That copies and hashes ring an event handle on both is an **assumption** too: NVIDIA's DMA samples poll, and the Core guide (3.4.5)
///   only says that there are contexts that cannot.
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
}

impl Limits {
    /// What the software device can do.
    pub fn unlimited() -> Limits {
        Limits {
            max_buf_size: isize::MAX as u64,
            max_list_len: u32::MAX,
            dma_event_driven: true,
            sha_event_driven: true,
        }
    }

    /// A BlueField-2, as far as is known: 1 MiB, and no lists.
    pub fn bluefield2() -> Limits {
        Limits::unlimited().max_buf_size(1 << 20).max_list_len(1)
    }

    /// A BlueField-3, as far as is known: 2 MiB, and lists of 64.
    pub fn bluefield3() -> Limits {
        Limits::unlimited().max_buf_size(2 << 20).max_list_len(64)
    }

    /// The most bytes in one copy or hash, at least 1.
    #[doc(alias = "doca_dma_get_max_buf_size")]
    #[doc(alias = "doca_sha_get_max_src_buffer_size")]
    pub fn max_buf_size(self, bytes: u64) -> Limits {
        let max_buf_size = bytes.clamp(1, isize::MAX as u64);
        Limits {
            max_buf_size,
            ..self
        }
    }

    /// The longest list on either side of a copy, or of what is hashed, at least 1: no lists.
    #[doc(alias = "doca_dma_get_max_list_buf_num_elem")]
    #[doc(alias = "doca_sha_get_max_list_buf_num_elem")]
    pub fn max_list_len(self, bufs: u32) -> Limits {
        let max_list_len = bufs.max(1);
        Limits {
            max_list_len,
            ..self
        }
    }

    /// Whether a [`Dma`](crate::Dma) attaches to an event-driven WorkQ.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn dma_event_driven(self, supported: bool) -> Limits {
        Limits {
            dma_event_driven: supported,
            ..self
        }
    }

    /// Whether a [`Sha`](crate::Sha) attaches to an event-driven WorkQ.
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub fn sha_event_driven(self, supported: bool) -> Limits {
        Limits {
            sha_event_driven: supported,
            ..self
        }
    }

    /// What a device with these limits says of itself.
    pub(super) fn caps(&self) -> Caps {
        let mut caps = Caps::for_dma(self.max_buf_size, self.max_list_len, MAX_DEPTH);
        if let Some(DmaCaps { event_driven, .. }) = &mut caps.dma {
            *event_driven = self.dma_event_driven;
        }
        let mut sha = ShaCaps::on_cpu(self.max_buf_size, self.max_list_len);
        sha.event_driven = self.sha_event_driven;
        caps.sha = Some(sha);
        caps.share_rdma = true;
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

    /// The profile of that name: `unlimited`, `bluefield2` or `bluefield3`.
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

    fn caps_of(bytes: u64, bufs: u32) -> Caps {
        let mut caps = Caps::for_dma(bytes, bufs, MAX_DEPTH);
        caps.sha = Some(ShaCaps::on_cpu(bytes, bufs));
        caps.share_rdma = true;
        caps
    }

    #[test]
    fn a_profile_says_of_itself_what_it_is() {
        for (name, bytes, bufs) in [
            ("unlimited", isize::MAX as u64, u32::MAX),
            ("bluefield2", 1 << 20, 1),
            ("bluefield3", 2 << 20, 64),
        ] {
            let caps = name.parse::<Limits>().unwrap().caps();
            assert_eq!(caps, caps_of(bytes, bufs), "{name}");
        }
        assert_eq!(Limits::default(), Limits::unlimited());
        let error = "bluefield".parse::<Limits>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.to_string().contains("bluefield3"), "{error}");
    }

    #[test]
    fn no_limit_is_less_than_one_piece_of_one_byte() {
        let none = Limits::unlimited().max_buf_size(0).max_list_len(0);
        assert_eq!(none.caps(), caps_of(1, 1));
        let all = Limits::unlimited().max_buf_size(u64::MAX);
        assert_eq!(all, Limits::unlimited());
    }
}
