//! How a user finds and opens a device.

use super::{open, providers};
use crate::device::{DevInfo, Device};
use crate::error::{Error, ErrorKind, Result};

impl Device {
    /// Opens the first device that can copy memory.
    ///
    /// # Errors
    ///
    /// `NotFound` if no device can; the error of a provider that cannot list or open its devices.
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

    /// Opens a device by name (`pf0`) or PCI address (`0000:0b:00.0`, `0b:00.0`). Opening a device
    /// that is open already returns the same device.
    ///
    /// An adapter's name (`mlx5_0`) opens its first port that is up, or its first port if none is
    /// up. A name with a port number opens that port: `mlx5_0/2` is the second. Ports are numbered
    /// from 1. Each of these names is a device of its own, with memory and contexts of its own; if
    /// the adapter has one port, `mlx5_0/1` is the same device as `mlx5_0`.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such device. The message lists the names that exist, and says how
    /// to get the device if that is known: for an adapter without the feature `verbs`, a port that
    /// the adapter does not have, or a device of the software card's other
    /// [`View`](crate::soft::View). Otherwise, the error of a provider.
    #[doc(alias = "doca_dev_open")]
    pub fn open(name: &str) -> Result<Device> {
        const OP: &str = "Device::open";
        for provider in providers() {
            let found = provider.find(name).map_err(|error| error.with_call(OP))?;
            if let Some(info) = found {
                return open(&*provider, &info).map_err(|error| error.with_call(OP));
            }
        }
        let mut names = Vec::new();
        let mut absent = String::new();
        for provider in providers() {
            let devices = provider.devices();
            let devices = devices.map_err(|error| error.with_call(OP))?;
            names.extend(devices.iter().map(|info| info.name().to_owned()));
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

    /// Returns all devices of all providers. An adapter with several ports is listed by its name,
    /// and after it once for each port (`mlx5_0/1`, `mlx5_0/2`).
    ///
    /// # Errors
    ///
    /// The error of a provider that cannot list its devices.
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
