//! What can be opened, and what it can do: plain data. It imports no other room of `device`.

mod algorithm;
mod caps;
mod info;
mod kind;
mod pci;
mod rep_info;

pub use algorithm::Algorithm;
pub use caps::{
    AccelCaps, Caps, DmaCaps, RdmaCaps, RdmaKind, RepCaps, RepFilter, ShaCaps, SyncEventCaps,
    SyncEventKind,
};
pub use info::DevInfo;
pub use kind::JobKind;
pub use pci::{PciAddr, PciFunction};
pub use rep_info::{RepInfo, RepKind};
