//! Which devices there are: as the host sees them, or as the DPU does.
//!
//! | view | device | port | PCI address |
//! |---|---|---|---|
//! | host | `pf0`, `pf0vf0`, `pf0vf1` | 0 | `0b:00.0`, `.2`, `.3` |
//! | host | `pf1`, `pf1vf0` | 1 | `0b:00.1`, `.4` |
//! | DPU | `p0`, and its sub-function `p0s0` | 0 | `03:00.0` |
//! | DPU | `p1`, and its sub-function `p1s0` | 1 | `03:00.1` |
//!
//! What a host function of a port exports to the DPU, the DPU's device of that port imports, and no other: sub-functions
//! do not (Core guide 3.2.3).

use std::str::FromStr;

use crate::device::{Caps, DevInfo, PciAddr, PciFunction};
use crate::error::{Error, ErrorKind, Result};

/// Which side of the card a process stands for.
///
/// A process has one, the host unless `TOKIO_DOCA_SOFT=dpu` is in its environment; a provider of your own has the one that it
/// was built with ([`SoftBuilder::view`](super::SoftBuilder::view)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// The host: its functions export to the DPU.
    #[default]
    Host,
    /// The DPU: its ports import what the host exports.
    Dpu,
}

impl FromStr for View {
    type Err = Error;

    /// `host` or `dpu`.
    fn from_str(name: &str) -> Result<View> {
        match name {
            "host" => Ok(View::Host),
            "dpu" => Ok(View::Dpu),
            _ => {
                let text = format!("\"{name}\" is no view: there are host and dpu");
                Err(Error::new(ErrorKind::InvalidValue, "View::from_str", text))
            }
        }
    }
}

/// A device to be: its name, bus, PCI function, kind, and the port that it belongs to.
struct Row(&'static str, u8, u8, PciFunction, u8);

const HOST: [Row; 5] = [
    Row("pf0", 0x0b, 0, PciFunction::Pf, 0),
    Row("pf1", 0x0b, 1, PciFunction::Pf, 1),
    Row("pf0vf0", 0x0b, 2, PciFunction::Vf, 0),
    Row("pf0vf1", 0x0b, 3, PciFunction::Vf, 0),
    Row("pf1vf0", 0x0b, 4, PciFunction::Vf, 1),
];

const DPU: [Row; 4] = [
    Row("p0", 0x03, 0, PciFunction::Pf, 0),
    Row("p1", 0x03, 1, PciFunction::Pf, 1),
    Row("p0s0", 0x03, 0, PciFunction::Sf, 0),
    Row("p1s0", 0x03, 1, PciFunction::Sf, 1),
];

fn rows(view: View) -> &'static [Row] {
    match view {
        View::Host => &HOST,
        View::Dpu => &DPU,
    }
}

/// The devices of a view.
pub(super) fn devices(provider: &'static str, view: View, caps: &Caps) -> Vec<DevInfo> {
    let device = |row: &Row| {
        let &Row(name, bus, number, function, _) = row;
        let mut caps = caps.clone();
        caps.export_dpu = view == View::Host;
        caps.import_dpu = view == View::Dpu && function == PciFunction::Pf;
        DevInfo::new(provider, name, PciAddr::new(bus, 0, number), function, caps)
    };
    rows(view).iter().map(device).collect()
}

/// The port that a device belongs to.
pub(super) fn port(name: &str) -> u8 {
    let row = HOST.iter().chain(&DPU).find(|row| row.0 == name);
    row.expect("a device of a view").4
}
