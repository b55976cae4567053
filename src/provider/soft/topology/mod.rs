//! The devices and representors that a process has: those of the host, or those of the DPU.
//!
//! | view | device | port | PCI address | its representor, on the DPU |
//! |---|---|---|---|---|
//! | host | `pf0` | 0 | `0b:00.0` | `hpf0`, behind `p0` |
//! | host | `pf0vf0`, `pf0vf1` | 0 | `0b:00.2`, `.3` | `hpf0vf0`, `hpf0vf1`, behind `p0` |
//! | host | `pf1`, `pf1vf0` | 1 | `0b:00.1`, `.4` | `hpf1`, `hpf1vf0`, behind `p1` |
//! | DPU | `p0`, and its sub-function `p0s0` | 0 | `03:00.0` | `pf0sf0` (of `p0s0`), behind `p0` |
//! | DPU | `p1`, and its sub-function `p1s0` | 1 | `03:00.1` | `pf1sf0` (of `p1s0`), behind `p1` |
//!
//! This is the default ([`Topology::default`], Core guide 3.2.1.2). Other topologies are built in
//! code. If a host function of a port exports memory to the DPU, only the DPU's device of that port
//! can import it (3.2.1.3); sub-functions import nothing.

mod card;
mod check;
mod current;
mod function;
mod view;

pub use card::Topology;
pub(super) use current::CurrentTopology;
pub use function::{Function, Port};
pub use view::View;
