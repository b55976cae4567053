//! The hashes that a device computes, and their limits.

use super::algorithm::Algorithm;

/// The hashes that a device computes, and their limits.
///
/// Limits that depend on the algorithm alone are methods of [`Algorithm`]:
/// [`Algorithm::digest_len`] is the least tailroom of a destination, and each part of a session but
/// the last is a multiple of [`Algorithm::block_len`].
///
/// ```
/// use tokio_doca::{Device, sha::Algorithm};
///
/// let device = Device::open_default()?;
/// let caps = device.info().caps().sha.as_ref().expect("the software device hashes");
/// assert!(caps.supports(Algorithm::Sha512) && caps.sessions);
/// assert!(!caps.hardware);                            // it hashes on the CPU
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShaCaps {
    /// The algorithms that the device computes.
    #[doc(alias = "doca_sha_job_get_supported")]
    pub algorithms: Vec<Algorithm>,
    /// True if a message can be hashed in several Jobs, by a session.
    #[doc(alias = "doca_sha_cap_task_partial_hash_get_supported")]
    pub sessions: bool,
    /// True if hardware computes the hashes; false if the CPU does.
    #[doc(alias = "doca_sha_get_hardware_supported")]
    pub hardware: bool,
    /// The maximum number of bytes in a job. A larger job fails with `InvalidValue`
    /// ([`Reason::TooLarge`](crate::error::Reason::TooLarge)).
    #[doc(alias = "doca_sha_get_max_src_buffer_size")]
    #[doc(alias = "doca_sha_cap_get_max_src_buf_size")]
    pub max_src_len: u64,
    /// The maximum number of Bufs in a source list; 1 if lists are not supported. A longer list
    /// fails with `InvalidValue` ([`Reason::ListTooLong`](crate::error::Reason::ListTooLong)). A
    /// destination is one Buf.
    #[doc(alias = "doca_sha_get_max_list_buf_num_elem")]
    #[doc(alias = "doca_sha_cap_get_max_list_buf_num_elem")]
    pub max_list_len: u32,
    /// True if hash jobs can signal an event handle. Otherwise a [`Sha`](crate::sha::Sha) attaches
    /// only to a WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll), and every other WorkQ refuses
    /// it (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl ShaCaps {
    /// Returns the capabilities of a device that computes all algorithms on the CPU, for whole
    /// messages and for sessions, and whose jobs can signal an event handle.
    pub fn on_cpu(max_src_len: u64, max_list_len: u32) -> ShaCaps {
        ShaCaps {
            algorithms: Algorithm::ALL.into(),
            sessions: true,
            hardware: false,
            max_src_len,
            max_list_len,
            event_driven: true,
        }
    }

    /// Returns true if the device computes this hash.
    #[doc(alias = "doca_sha_cap_task_hash_get_supported")]
    pub fn supports(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }
}
