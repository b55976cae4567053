//! The families of devices, and how a device is found and opened.
//!
//! A provider sees `device` alone. What it opens is handed upward as a [`Device`].

mod envelope;
pub mod soft;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::sync::{Arc, LazyLock, Mutex};

use tracing::{debug, warn};

use crate::device::{DevInfo, Device, Provider};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{lock, log};

type List = Vec<Arc<dyn Provider>>;

/// The software devices, and the providers that the application has added.
static PROVIDERS: LazyLock<Mutex<List>> =
    LazyLock::new(|| Mutex::new(vec![Arc::new(soft::Soft::from_env())]));

#[cfg(feature = "verbs")]
static VERBS: LazyLock<Arc<verbs::Verbs>> = LazyLock::new(|| Arc::new(verbs::Verbs::system()));

/// The adapters of the system.
#[cfg(feature = "verbs")]
fn verbs() -> &'static verbs::Verbs {
    &VERBS
}

/// All providers. Adapters are the last, so that only who looks for what no other provider has
/// opens libibverbs.
fn providers() -> List {
    #[allow(unused_mut, reason = "there may be no adapters")]
    let mut list = lock(&*PROVIDERS).clone();
    #[cfg(feature = "verbs")]
    list.push(Arc::clone(&*VERBS) as _);
    list
}

/// Opens the device, and writes so to the log.
fn open(provider: &dyn Provider, info: &DevInfo) -> Result<Device> {
    let opened = provider.open(info);
    let (device, provider) = (info.name(), provider.name());
    log(|| match &opened {
        Ok(_) => debug!(target: "tokio_doca::device", device, provider, "device opened"),
        Err(error) => {
            warn!(target: "tokio_doca::device", device, provider, %error, "device refused")
        }
    });
    opened
}

/// Adds a provider of the application's: its devices are listed and opened by name like all others.
///
/// # Errors
///
/// `AlreadyExist` if there is one of that name.
pub fn add_provider(provider: Arc<dyn Provider>) -> Result<()> {
    let mut list = lock(&*PROVIDERS);
    let name = provider.name();
    let built_in = cfg!(feature = "verbs") && name == "verbs";
    if built_in || list.iter().any(|known| known.name() == name) {
        let text = format!("there is a provider \"{name}\" already");
        return Err(Error::new(ErrorKind::AlreadyExist, "add_provider", text));
    }
    list.push(provider);
    Ok(())
}

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
