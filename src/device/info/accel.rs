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
    /// What it knows. The numbers are the provider's own: the same number may mean something else
    /// on another device.
    pub opcodes: Vec<u32>,
    /// The most bytes that one Job reads, or has room to write if it reads nothing; more is
    /// `InvalidValue`.
    pub max_buf_size: u64,
    /// The longest list of Bufs on either side, 1 if there are no lists; a longer one is
    /// `InvalidValue`.
    pub max_list_len: u32,
    /// Whether these Jobs can ring an event handle; if not, an event-driven WorkQ refuses the
    /// context (`NotSupported`).
    #[doc(alias = "doca_ctx_get_event_driven_supported")]
    pub event_driven: bool,
}

impl AccelCaps {
    /// Capabilities of an accelerator that signals.
    pub fn new(opcodes: impl Into<Vec<u32>>, max_buf_size: u64, max_list_len: u32) -> AccelCaps {
        AccelCaps {
            opcodes: opcodes.into(),
            max_buf_size,
            max_list_len,
            event_driven: true,
        }
    }

    /// Whether it knows an opcode.
    pub fn supports(&self, opcode: u32) -> bool {
        self.opcodes.contains(&opcode)
    }
}
