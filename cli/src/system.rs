//! Reads the kernel's files, which are short. A path that is not a regular file and a long file are
//! refused, so that an odd file neither blocks nor fills the memory.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::failure::cannot;

/// The maximum size of a file that is read, in bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// Returns the bytes of a file, or the reason why it cannot be read, as a sentence.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    bytes_within(path, LONGEST)
}

/// Returns the bytes of a file of at most `longest` bytes, or why it cannot be read. `longest` is
/// some MiB at most.
pub(crate) fn bytes_within(path: &Path, longest: u64) -> Result<Vec<u8>, String> {
    let cannot = cannot("read", path);
    // Checked before the open, which would block on a pipe.
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

/// Returns the text of a file without white space at either end.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let text = String::from_utf8(bytes(path)?);
    let text = text.map_err(|_| format!("{} is not UTF-8", path.display()))?;
    Ok(text.trim().to_owned())
}
