//! Opens the device and the file that a command uses, and parses sizes.

use std::fs::{self, File, Metadata};
use std::path::Path;
use std::sync::Arc;

use tokio_doca::Device;

use crate::failure::{Failure, Result, cannot, name};

/// Opens the device with this name. Defaults to the first that copies.
pub(crate) fn device(name: Option<&str>) -> Result<Device> {
    Ok(match name {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    })
}

/// Makes a runtime that runs on this thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    Ok(runtime.map_err(cannot("start", "the runtime".as_ref()))?)
}

/// A regular file that is open for reading.
pub(crate) struct Source {
    pub(crate) file: Arc<File>,
    pub(crate) meta: Metadata,
}

/// Opens a file to copy or send. The file's type is checked before, since opening a pipe would wait
/// for its other end.
pub(crate) fn source(what: &str, path: &Path) -> Result<Source> {
    let meta = fs::metadata(path).map_err(cannot("read", path))?;
    let kind = match meta.file_type() {
        it if it.is_file() => None,
        it if it.is_dir() => Some("a directory"),
        _ => Some("no regular file"),
    };
    if let Some(kind) = kind {
        return Err(no_file(what, path, kind));
    }
    let file = File::open(path).map_err(cannot("read", path))?;
    let meta = file.metadata().map_err(cannot("read", path))?;
    Ok(Source {
        file: Arc::new(file),
        meta,
    })
}

/// Returns the sentence for a path that is of this kind in place of a file.
pub(crate) fn no_file(what: &str, path: &Path, kind: &str) -> Failure {
    let name = name(path);
    Failure::Failed(format!("cannot {what} {name}: it is {kind}: name a file"))
}

/// Parses a size from 1 to `most`: a number of bytes, or of KiB, MiB or GiB.
pub(crate) fn size(text: &str, most: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let bits = match &text[digits.len()..] {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return None,
    };
    let size = digits.parse::<u64>().ok()?.checked_mul(1 << bits)?;
    (1..=most).contains(&size).then_some(size)
}
