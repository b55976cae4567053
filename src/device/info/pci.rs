//! PCI addresses, and the kinds of PCI functions.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// A PCI address: domain, bus, device, function.
///
/// An address is written in full (`0000:0b:00.0`) or in short (`0b:00.0`, which is in domain 0).
///
/// ```
/// use tokio_doca::device::PciAddr;
///
/// let address: PciAddr = "0b:00.2".parse()?;
/// assert_eq!(address, PciAddr::new(0x0b, 0, 2));
/// assert_eq!(address.to_string(), "0000:0b:00.2");
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddr {
    /// Domain (segment).
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl PciAddr {
    /// Returns the address in domain 0.
    pub const fn new(bus: u8, device: u8, function: u8) -> PciAddr {
        PciAddr {
            domain: 0,
            bus,
            device,
            function,
        }
    }
}

impl fmt::Display for PciAddr {
    /// Writes the full form, as `doca_devinfo_get_pci_addr_str` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl FromStr for PciAddr {
    type Err = Error;

    fn from_str(text: &str) -> Result<PciAddr, Error> {
        let hex = |part: &str, digits: usize, max: u16| {
            let plain = part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
            let value = u16::from_str_radix(part, 16).ok();
            value.filter(|&value| plain && value <= max)
        };
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
            Some(PciAddr {
                domain: hex(domain, 4, u16::MAX)?,
                bus: hex(bus, 2, 0xff)? as u8,
                device: hex(device, 2, 31)? as u8,
                function: hex(function, 1, 7)? as u8,
            })
        };
        parse().ok_or_else(|| {
            let text = format!("\"{text}\" is no PCI address: write 0000:0b:00.0 or 0b:00.0");
            Error::new(ErrorKind::InvalidValue, "PciAddr::from_str", text)
        })
    }
}

/// The kind of a PCI function (`doca_pci_func_type`).
///
/// ```
/// use tokio_doca::Device;
/// use tokio_doca::device::PciFunction;
///
/// let virtual_functions = Device::list()?
///     .into_iter()
///     .filter(|info| info.function() == PciFunction::Vf);
/// for info in virtual_functions {
///     println!("{} is a virtual function", info.name());
/// }
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "doca_pci_func_type")]
pub enum PciFunction {
    /// Physical function.
    #[doc(alias = "DOCA_PCI_FUNC_PF")]
    #[doc(alias = "DOCA_PCI_FUNC_TYPE_PF")]
    Pf,
    /// Virtual function.
    #[doc(alias = "DOCA_PCI_FUNC_VF")]
    #[doc(alias = "DOCA_PCI_FUNC_TYPE_VF")]
    Vf,
    /// Sub-function.
    #[doc(alias = "DOCA_PCI_FUNC_SF")]
    #[doc(alias = "DOCA_PCI_FUNC_TYPE_SF")]
    Sf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_is_read_in_both_forms() {
        let addr = PciAddr {
            domain: 0,
            bus: 0x0b,
            device: 0,
            function: 2,
        };
        assert_eq!("0000:0b:00.2".parse::<PciAddr>().unwrap(), addr);
        assert_eq!("0b:00.2".parse::<PciAddr>().unwrap(), addr);
        assert_eq!("0B:00.2".parse::<PciAddr>().unwrap(), addr);
        assert_eq!(addr.to_string(), "0000:0b:00.2");
        let far = PciAddr {
            domain: 0xabcd,
            bus: 0xff,
            device: 31,
            function: 7,
        };
        assert_eq!(far.to_string().parse::<PciAddr>().unwrap(), far);
    }

    #[test]
    fn what_is_no_pci_address_is_refused_with_the_text() {
        for text in [
            "",
            "b:00.0",
            "0b:00",
            "0b:00.8",
            "0b:20.0",
            "000:0b:00.0",
            "0b:00.0 ",
            "0b:+0.0",
            "g0:00.0",
            "é:é.é",
        ] {
            let error = text.parse::<PciAddr>().unwrap_err();
            assert!(
                error.to_string().contains(&format!("\"{text}\"")),
                "{error}"
            );
        }
    }
}
