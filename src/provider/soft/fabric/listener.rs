//! The address at which the fabric of this process listens: an abstract name, or a path if a folder
//! was chosen.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::errno::Errno;

use super::protocol::{Address, Id, NAME_MAX, netns, socket};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{Guarded, variable};
use crate::sync::lock;

const VARIABLE: &str = "TOKIO_DOCA_SOFT_SOCKET";

static CHOSEN: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes fabrics that start from now on listen in this folder.
pub(super) fn choose(path: &Path) -> Result<()> {
    let path = folder(path)?;
    *lock(&CHOSEN) = Some(path);
    Ok(())
}

/// Returns the absolute path of a folder, if the path of a socket in it is not too long.
fn folder(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)
        .map_err(|error| Error::os(None, format!("the path {}", path.display()), error))?;
    let wrong = |text| Err(Error::new(ErrorKind::InvalidValue, None, text));
    let len = path.join(name(&Id::default())).as_os_str().len();
    if len > NAME_MAX {
        return wrong(format!(
            "a socket's path has at most {NAME_MAX} bytes (unix(7)), and one in {} would have {len}: choose a shorter one",
            path.display()
        ));
    }
    if !path.is_dir() {
        return wrong(format!(
            "{} is no folder: each process takes a socket of its own in it, so create one",
            path.display()
        ));
    }
    Ok(path)
}

/// Returns the name of the socket of an instance.
fn name(instance: &Id) -> String {
    format!("tokio-doca-{}", netns::hex(instance))
}

/// Returns true if the fabric of this instance may listen at this address.
pub(super) fn is_of(address: &Address, instance: &Id) -> bool {
    let name = name(instance);
    match address {
        Address::Abstract(at) => *at == name.as_bytes(),
        Address::Path(path) | Address::NoLink(path) => {
            path.file_name().is_some_and(|at| *at == *name)
        }
    }
}

/// Returns a listener for the fabric of this instance.
pub(super) fn open(instance: &Id) -> Result<(Guarded, Address)> {
    let chosen = lock(&CHOSEN).clone();
    let asked = match (chosen, variable(VARIABLE)) {
        (Some(path), _) => Some(path),
        (None, Some(path)) if !path.is_empty() => Some(folder(path.as_ref())?),
        _ => None,
    };
    let name = name(instance);
    let address = match asked {
        Some(folder) => Address::Path(folder.join(name)),
        None => Address::Abstract(name.into_bytes()),
    };
    let listener = socket::listen(&address).map_err(|errno| failed(&address, errno))?;
    Ok((listener, address))
}

fn failed(address: &Address, errno: Errno) -> Error {
    Error::os(None, format!("a socket at {address}"), errno.into())
}

/// Removes the path of a listener whose fabric ends. No other fabric ever has the same path.
pub(super) fn leave(address: &Address) {
    if let Address::Path(path) = address {
        let _ = std::fs::remove_file(path);
    }
}
