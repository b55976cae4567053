//! Where the fabric of this process listens: an abstract name, or a path if one was asked for.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::errno::Errno;

use super::place::{self, Id};
use super::process::{self, lock};
use super::socket::{self, Address, NAME_MAX};
use crate::error::{Error, ErrorKind, Result};

const SET: &str = "soft::set_socket_path";
const VARIABLE: &str = "TOKIO_DOCA_SOFT_SOCKET";

static CHOSEN: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The path that a fabric of this process made, and which. Whoever makes or removes one holds the lock.
static MADE: Mutex<Option<(PathBuf, Id)>> = Mutex::new(None);

/// Exports of this process are answered at a socket with this path, and not with an abstract name; `TOKIO_DOCA_SOFT_SOCKET` in the
/// environment says the same.
///
/// An abstract name belongs to a network namespace. Importers in another one (a container) need a path, which they see
/// under the same name and may write to (unix(7)); no stranger may write to its directory. A directory that exists gets a socket of its own for each
/// process; any other path is for one process at a time. At most 107 bytes.
///
/// The socket is removed with the last export and import. `kill -9` leaves it behind, which an abstract name never is; the next process
/// that takes the path replaces it.
///
/// # Errors
///
/// `BadState` while this process has exports or imports of software devices; `InvalidValue` for a path that is too long.
pub fn set_socket_path(path: impl AsRef<Path>) -> Result<()> {
    if process::is_running() {
        let text = "this process has exports or imports by now: say it before the first of them";
        return Err(Error::new(ErrorKind::BadState, SET, text));
    }
    let path = absolute(SET, path.as_ref())?;
    *lock(&CHOSEN) = Some(path);
    Ok(())
}

fn absolute(op: &'static str, path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)
        .map_err(|error| Error::os(op, format!("the path {}", path.display()), error))?;
    fits(op, path)
}

fn fits(op: &'static str, path: PathBuf) -> Result<PathBuf> {
    let len = path.as_os_str().len();
    if len > NAME_MAX {
        let text = format!(
            "a socket's path has at most {NAME_MAX} bytes (unix(7)), and {} has {len}: choose a shorter one",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidValue, op, text));
    }
    Ok(path)
}

/// A listener for the fabric of this instance.
pub(super) fn open(op: &'static str, instance: &Id) -> Result<(UnixListener, Address)> {
    let name = format!("tokio-doca-{}", place::hex(instance));
    let chosen = lock(&CHOSEN).clone();
    let asked = match (chosen, std::env::var_os(VARIABLE)) {
        (Some(path), _) => Some(path),
        (None, Some(path)) if !path.is_empty() => Some(absolute(op, path.as_ref())?),
        _ => None,
    };
    let Some(path) = asked else {
        let address = Address::Abstract(name.into_bytes());
        let listener = socket::listen(&address).map_err(|errno| failed(op, &address, errno))?;
        return Ok((listener, address));
    };
    let path = match path.is_dir() {
        true => fits(op, path.join(name))?,
        false => path,
    };
    at_path(op, path, instance)
}

fn at_path(op: &'static str, path: PathBuf, instance: &Id) -> Result<(UnixListener, Address)> {
    let mut made = lock(&MADE);
    let address = Address::Path(path.clone());
    let listener = match socket::listen(&address) {
        Err(Errno::EADDRINUSE) => {
            // Left by a fabric of this process that is about to remove it, or by a process that was killed.
            let ours = made.as_ref().is_some_and(|(made, _)| *made == path);
            if !ours && (!is_socket(&path) || socket::is_listened_at(&path)) {
                let text = format!(
                    "{} is in use, by another process or as a file: choose a path for each process, or a directory",
                    path.display()
                );
                return Err(Error::new(ErrorKind::InUse, op, text));
            }
            let _ = std::fs::remove_file(&path);
            socket::listen(&address)
        }
        other => other,
    };
    let listener = listener.map_err(|errno| failed(op, &address, errno))?;
    *made = Some((path, *instance));
    Ok((listener, address))
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

fn failed(op: &'static str, address: &Address, errno: Errno) -> Error {
    Error::os(op, format!("a socket at {address}"), errno.into())
}

/// The fabric of this instance ends: removes its path, unless a later one has it.
pub(super) fn leave(address: &Address, instance: &Id) {
    let Address::Path(path) = address else {
        return;
    };
    let mut made = lock(&MADE);
    if made.as_ref().is_some_and(|(_, by)| by == instance) {
        let _ = std::fs::remove_file(path);
        *made = None;
    }
}
