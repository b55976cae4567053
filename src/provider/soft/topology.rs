//! Which devices there are: the host's view.

use crate::device::{Caps, DevInfo, PciAddr, PciFunction};

/// The most jobs that one queue takes.
const MAX_DEPTH: u32 = 1 << 20;

/// The devices of the host view: two ports with their virtual functions.
pub(super) fn host(provider: &'static str) -> Vec<DevInfo> {
    let caps = Caps::for_dma(isize::MAX as u64, u32::MAX, MAX_DEPTH);
    [
        ("pf0", 0, PciFunction::Pf),
        ("pf1", 1, PciFunction::Pf),
        ("pf0vf0", 2, PciFunction::Vf),
        ("pf0vf1", 3, PciFunction::Vf),
        ("pf1vf0", 4, PciFunction::Vf),
    ]
    .map(|(name, number, function)| {
        DevInfo::new(
            provider,
            name,
            PciAddr::new(0x0b, 0, number),
            function,
            caps.clone(),
        )
    })
    .into()
}
