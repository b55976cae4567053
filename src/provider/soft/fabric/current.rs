//! The fabric of this process, which exists from the first export or import until the last one is
//! dropped.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use super::listener;
use super::process::{Fabric, OWNER, Shared};
use super::thread::Worker;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Process, lock};

const SET: &str = "soft::set_socket_path";

static CURRENT: Mutex<Weak<Fabric>> = Mutex::new(Weak::new());

/// Returns the fabric of this process, starting it if there is none.
pub(super) fn fabric() -> Result<Arc<Fabric>> {
    let process = Process::current();
    let owner = OWNER.load(Relaxed);
    if owner != 0 && owner >> 32 != u64::from(process.distinct()) {
        let text = "this process is a fork of one whose exports and imports are not inherited: fork \
                    before the first export or import, or start a program anew (execve(2)) and \
                    export and import there";
        return Err(Error::new(ErrorKind::BadState, None, text));
    }
    let mut current = lock(&CURRENT);
    if let Some(fabric) = current.upgrade() {
        return Ok(fabric);
    }
    let fabric = Arc::new(start(process)?);
    *current = Arc::downgrade(&fabric);
    Ok(fabric)
}

fn start(process: Process) -> Result<Fabric> {
    let shared = Arc::new(Shared::new(process)?);
    let worker = Worker::new(Arc::clone(&shared));
    thread::Builder::new()
        .name("doca-fabric".to_owned())
        .stack_size(256 << 10)
        .spawn(move || worker.run())
        .map_err(|error| Error::os(None, "the fabric's thread", error))?;
    Ok(Fabric::new(shared))
}

/// Makes this process serve its exports at a socket in the folder `path`, instead of at an abstract
/// name (unix(7)). The environment variable `TOKIO_DOCA_SOFT_SOCKET` does the same.
///
/// An abstract name belongs to a network namespace, so importers in another namespace (a container)
/// need a path. They must see the folder under the same name, and be able to write to the socket.
/// Other users must not be able to write to the folder. Each process creates its own socket there,
/// with a name that is never used again, so processes may share the folder. The absolute path of
/// the folder has at most 63 bytes.
///
/// The socket is removed when the last export or import is dropped. After `kill -9` it remains,
/// unlike an abstract name; no process listens at it then, and you may delete it.
///
/// # Errors
///
/// `BadState` while this process has exports or imports of software devices; `InvalidValue` if the
/// path is not a folder, or is too long.
pub fn set_socket_path(path: impl AsRef<Path>) -> Result<()> {
    if OWNER.load(Relaxed) != 0 {
        let text = "this process has exports or imports by now: say it before the first of them";
        return Err(Error::new(ErrorKind::BadState, SET, text));
    }
    listener::choose(path.as_ref()).map_err(|error| error.with_call(SET))
}
