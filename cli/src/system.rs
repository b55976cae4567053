//! Reads files of the kernel, of which each is short: a file that is none, or that is long, is
//! refused, so that an odd file neither blocks nor fills the memory.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::failure::cannot;

/// The longest file that is read, in bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// Returns the bytes of a file, or a sentence that says why it cannot be read.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    bytes_within(path, LONGEST)
}

/// The same of a file of at most `longest` bytes, which are some MiB.
pub(crate) fn bytes_within(path: &Path, longest: u64) -> Result<Vec<u8>, String> {
    let cannot = cannot("read", path);
    // A pipe would block the open.
    if !fs::metadata(path).map_err(&cannot)?.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(&cannot)?;
    file.take(longest + 1)
        .read_to_end(&mut bytes)
        .map_err(&cannot)?;
    match bytes.len() as u64 > longest {
        true => Err(format!(
            "{} is longer than {} MiB",
            path.display(),
            longest >> 20
        )),
        false => Ok(bytes),
    }
}

/// Returns the text of a file without white space at its ends.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let text = String::from_utf8(bytes(path)?);
    let text = text.map_err(|_| format!("{} is not UTF-8", path.display()))?;
    Ok(text.trim().to_owned())
}
