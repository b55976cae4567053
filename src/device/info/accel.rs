//! The jobs of an accelerator, and their limits.

/// The kinds of Jobs of an accelerator, and their limits.
///
/// ```
/// use tokio_doca::Device;
///
/// for info in Device::list()? {
///     if let Some(caps) = &info.caps().accel {
///         println!("{}: opcodes {:?}, {} bytes", info.name(), caps.opcodes, caps.max_buf_size);
///     }
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccelCaps {
    /// The opcodes that the accelerator knows. The numbers are the provider's own: the same number
    /// may mean something else on another device.
    pub opcodes: Vec<u32>,
    /// The maximum number of bytes that a job reads, or writes if it reads nothing. A larger job
    /// fails with `InvalidValue`.
    pub max_buf_size: u64,
    /// The maximum number of Bufs in a list on either side; 1 if lists are not supported. A longer
    /// list fails with `InvalidValue`.
    pub max_list_len: u32,
    /// True if the accelerator's jobs can signal an event handle. Otherwise an
    /// [`Accel`](crate::accel::Accel) attaches only to a WorkQ in
    /// [`Mode::BusyPoll`](crate::Mode::BusyPoll), and every other WorkQ refuses it
    /// (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl AccelCaps {
    /// Returns the capabilities of an accelerator whose jobs can signal an event handle.
    pub fn new(opcodes: impl Into<Vec<u32>>, max_buf_size: u64, max_list_len: u32) -> AccelCaps {
        AccelCaps {
            opcodes: opcodes.into(),
            max_buf_size,
            max_list_len,
            event_driven: true,
        }
    }

    /// Returns true if the accelerator knows `opcode`.
    pub fn supports(&self, opcode: u32) -> bool {
        self.opcodes.contains(&opcode)
    }
}
