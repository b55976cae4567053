//! What a device can do: data, checked when a thing is built.

/// The capabilities of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Copies, and their limits; `None` if the device copies nothing.
    pub dma: Option<DmaCaps>,
    /// Whether completions can ring an event handle.
    pub event_driven: bool,
    /// The most Jobs that one queue takes; a WorkQ deeper than that is refused when it is attached.
    pub max_depth: u32,
}

/// The limits of copies (`doca_dma_get_max_buf_size`, `doca_dma_get_max_list_buf_num_elem`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaCaps {
    /// The most bytes in one Job.
    pub max_buf_size: u64,
    /// The longest list of Bufs on either side; 1 means no lists.
    pub max_list_len: u32,
}

impl Caps {
    /// Capabilities of a device that copies and signals.
    pub fn for_dma(max_buf_size: u64, max_list_len: u32, max_depth: u32) -> Caps {
        Caps {
            dma: Some(DmaCaps {
                max_buf_size,
                max_list_len,
            }),
            event_driven: true,
            max_depth,
        }
    }
}
