//! How a user finds and opens a device.

use super::{open, providers};
use crate::device::{DevInfo, Device};
use crate::error::{Error, ErrorKind, Result};

impl Device {
    /// Opens the first device that copies.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none; whatever the provider says.
    pub fn open_default() -> Result<Device> {
        let first = || {
            for provider in providers() {
                let mut devices = provider.devices()?.into_iter();
                if let Some(info) = devices.find(|info| info.caps().dma.is_some()) {
                    return open(&*provider, &info);
                }
            }
            Err(Error::new(ErrorKind::NotFound, None, "no device copies"))
        };
        first().map_err(|error: Error| error.with_call("Device::open_default"))
    }

    /// Opens a device by name (`pf0`) or PCI address (`0000:0b:00.0`, `0b:00.0`). Opening an open
    /// device yields the same one.
    ///
    /// # Errors
    ///
    /// `NotFound`, with the names that there are, and how to get the device if that is known: an
    /// adapter without the feature `verbs`, a device of the software card's other
    /// [`View`](crate::soft::View); whatever the provider says.
    #[doc(alias = "doca_dev_open")]
    pub fn open(name: &str) -> Result<Device> {
        const OP: &str = "Device::open";
        let mut names = Vec::new();
        let mut absent = String::new();
        for provider in providers() {
            let devices = provider.devices();
            for info in devices.map_err(|error| error.with_call(OP))? {
                if info.is_named(name) {
                    return open(&*provider, &info).map_err(|error| error.with_call(OP));
                }
                names.push(info.name().to_owned());
            }
            if let Some(why) = provider.why_not(name) {
                absent = format!("{absent}; {why}");
            }
        }
        #[cfg(not(feature = "verbs"))]
        absent.push_str(
            "; adapters (mlx5_0, rxe0) need the feature \"verbs\", without which tokio-doca was built",
        );
        let names = names.join(", ");
        let text = format!("no device \"{name}\"; there are: {names}{absent}");
        Err(Error::new(ErrorKind::NotFound, OP, text))
    }

    /// All devices of all providers.
    ///
    /// # Errors
    ///
    /// Why a provider could not list its devices.
    #[doc(alias = "doca_devinfo_list_create")]
    #[doc(alias = "doca_devinfo_create_list")]
    pub fn list() -> Result<Vec<DevInfo>> {
        let mut list = Vec::new();
        for provider in providers() {
            let devices = provider.devices();
            list.extend(devices.map_err(|error| error.with_call("Device::list"))?);
        }
        Ok(list)
    }
}
