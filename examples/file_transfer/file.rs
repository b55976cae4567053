//! The file that is sent, and the file that is being received.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Result;

/// Opens a regular file to be sent, and returns its length. Returns `None` if the file does not
/// exist.
pub fn open(path: &str) -> Result<Option<(File, u64)>> {
    let named = |error: std::io::Error| format!("{path}: {error}");
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(error).into()),
        Ok(metadata) if !metadata.is_file() => Err(format!("{path}: no regular file").into()),
        Ok(metadata) => Ok(Some((File::open(path).map_err(named)?, metadata.len()))),
    }
}

/// A file that is being received. It gets its name once it is complete, and is removed otherwise.
pub struct Part {
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl Part {
    pub fn create(path: &str) -> Result<Part> {
        let named = |error: std::io::Error| format!("{path}: {error}");
        let part = PathBuf::from(format!("{path}.{}.part", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .open(&part)
            .map_err(named)?;
        let path = Path::new(path).to_owned();
        Ok(Part { file, part, path })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let named = |error: std::io::Error| format!("{}: {error}", self.path.display());
        Ok(self.file.write_all(bytes).map_err(named)?)
    }

    /// Gives the complete file its name. Does not overwrite a file that has appeared there
    /// meanwhile.
    pub fn keep(self) -> Result<()> {
        let named = |error: std::io::Error| format!("{}: {error}", self.path.display());
        self.file.sync_all().map_err(named)?;
        Ok(std::fs::hard_link(&self.part, &self.path).map_err(named)?)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.part);
    }
}
