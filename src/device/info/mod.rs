//! What can be opened, and what it can do: plain data. It imports no other module of `device`.
//!
//! Each kind of context has a file with its capabilities. `caps` puts them together, and says which
//! kinds of jobs a device does.

mod accel;
mod algorithm;
mod caps;
mod crc;
mod dma;
mod info;
mod pci;
mod rdma;
mod rep_info;
mod sha;
mod sync_event;

pub use accel::AccelCaps;
pub use algorithm::Algorithm;
pub use caps::{Caps, JobKind};
pub use crc::CrcCaps;
pub use dma::DmaCaps;
pub use info::DevInfo;
pub use pci::{PciAddr, PciFunction};
pub use rdma::{RdmaCaps, RdmaKind};
pub use rep_info::{RepCaps, RepFilter, RepInfo, RepKind};
pub use sha::ShaCaps;
pub use sync_event::{SyncEventCaps, SyncEventKind};
