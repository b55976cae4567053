//! The side of the card that a process is on.

use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// The side of the card that a process is on.
///
/// Defaults to the host, unless the environment has `TOKIO_DOCA_SOFT=dpu`. A provider that is built
/// in code has the view of [`SoftBuilder::view`](crate::soft::SoftBuilder::view).
///
/// ```
/// use tokio_doca::soft::{Soft, View};
///
/// let [host, dpu] = [View::Host, View::Dpu].map(|view| Soft::builder().view(view).build());
/// assert!(host.open("pf0")?.info().caps().export_dpu);
/// assert!(dpu.open("p0")?.info().caps().import_dpu);
/// assert!(dpu.open("pf0").is_err());                  // a function of the host
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// The host. Its functions export to the DPU.
    #[default]
    Host,
    /// The DPU. Its ports import what the host exports, and list the representors.
    Dpu,
}

impl FromStr for View {
    type Err = Error;

    /// Parses `host` or `dpu`.
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
