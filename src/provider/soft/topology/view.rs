//! The side of the card that a process stands for.

use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// Which side of the card a process stands for.
///
/// A process has one, the host unless `TOKIO_DOCA_SOFT=dpu` is in its environment; a provider of your own has the one that it
/// was built with ([`SoftBuilder::view`](crate::soft::SoftBuilder::view)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// The host: its functions export to the DPU.
    #[default]
    Host,
    /// The DPU: its ports import what the host exports, and have the representors.
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
