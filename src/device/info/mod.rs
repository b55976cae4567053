//! Devices and representors that can be opened, and their capabilities: plain data. This module
//! imports no other module of `device`.
//!
//! Each kind of context has a file with its capabilities. `caps` puts these together, and
//! `Caps::supports` says which kinds of jobs a device does.

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
