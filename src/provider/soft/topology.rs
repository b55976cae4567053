//! Which devices there are: the host's view.

use crate::device::{Caps, DevInfo, PciAddr, PciFunction};

/// The devices of the host view: two ports with their virtual functions.
pub(super) fn host(provider: &'static str, caps: &Caps) -> Vec<DevInfo> {
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
