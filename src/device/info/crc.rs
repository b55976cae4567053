//! The limits of CRCs.

/// The limits of CRC-32C jobs.
///
/// ```
/// use tokio_doca::Device;
///
/// let device = Device::open_default()?;
/// match &device.info().caps().crc {
///     Some(caps) => println!("CRCs of up to {} bytes", caps.max_buf_size),
///     None => println!("the device computes no CRCs"),
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrcCaps {
    /// The maximum number of bytes in a job. Values above 4,294,967,295 count as 4,294,967,295,
    /// since a job returns the number of bytes and the CRC in one 64-bit number. A larger job fails
    /// with `InvalidValue` ([`Reason::TooLarge`](crate::error::Reason::TooLarge)).
    pub max_buf_size: u64,
    /// The maximum number of Bufs in a list on either side; 1 if lists are not supported. A longer
    /// list fails with `InvalidValue` ([`Reason::ListTooLong`](crate::error::Reason::ListTooLong)).
    pub max_list_len: u32,
    /// True if CRC jobs can signal an event handle. Otherwise a [`Crc`](crate::crc::Crc) attaches
    /// only to a WorkQ in [`Mode::BusyPoll`](crate::Mode::BusyPoll), and every other WorkQ refuses
    /// it (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl CrcCaps {
    /// Returns the capabilities of a device whose jobs can signal an event handle. Limits
    /// `max_buf_size` to 4,294,967,295.
    pub fn new(max_buf_size: u64, max_list_len: u32) -> CrcCaps {
        CrcCaps {
            max_buf_size: max_buf_size.min(u32::MAX.into()),
            max_list_len,
            event_driven: true,
        }
    }
}
