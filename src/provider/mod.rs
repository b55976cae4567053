//! The families of devices, and how a device is found and opened.
//!
//! Of the crate's modules, a provider sees `device`, `error`, `sync` and `process` alone. What a
//! provider opens is handed upward as a [`Device`].

// First, since the documentation shows the methods of a type in the order of modules.
mod open;

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

/// Returns the provider of the system's adapters.
#[cfg(feature = "verbs")]
fn verbs() -> &'static verbs::Verbs {
    &VERBS
}

/// Returns all providers. Adapters come last, so that libibverbs is opened only to find a device
/// that no other provider has.
fn providers() -> List {
    #[allow(unused_mut, reason = "there may be no adapters")]
    let mut list = lock(&*PROVIDERS).clone();
    #[cfg(feature = "verbs")]
    list.push(Arc::clone(&*VERBS) as _);
    list
}

/// Opens the device, and logs whether that succeeded.
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

/// Adds a provider that the application implements. Its devices are listed and opened by name like
/// all others.
///
/// # Errors
///
/// `AlreadyExist` if there is a provider of that name.
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
