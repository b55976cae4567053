//! The limits of copies.

/// The limits of copies.
///
/// ```
/// use tokio_doca::{Device, Dma, WorkQ};
///
/// # let device = Device::open_default()?;
/// let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
/// let caps = dma.caps();
/// let part = caps.max_buf_size.min(1 << 20);          // cut a file into copies of this size
/// # assert_eq!(part, 1 << 20);
/// println!("copies of {part} bytes, from lists of up to {}", caps.max_list_len);
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaCaps {
    /// The maximum number of bytes in a job. A larger job fails with `InvalidValue`
    /// ([`Reason::TooLarge`](crate::error::Reason::TooLarge)).
    #[doc(alias = "doca_dma_get_max_buf_size")]
    #[doc(alias = "doca_dma_cap_task_memcpy_get_max_buf_size")]
    pub max_buf_size: u64,
    /// The maximum number of Bufs in a list on either side; 1 if lists are not supported. A longer
    /// list fails with `InvalidValue` ([`Reason::ListTooLong`](crate::error::Reason::ListTooLong)).
    /// Sources without data and destinations without tailroom do not count.
    #[doc(alias = "doca_dma_get_max_list_buf_num_elem")]
    #[doc(alias = "doca_dma_cap_task_memcpy_get_max_buf_list_len")]
    pub max_list_len: u32,
    /// True if copies can signal an event handle. Otherwise a Dma attaches only to a WorkQ in
    /// [`Mode::BusyPoll`](crate::Mode::BusyPoll), and every other WorkQ refuses it (`NotSupported`,
    /// DOCA Core guide 3.4.5).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}
