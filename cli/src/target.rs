//! The file that `copy`, `serve` or `bench` writes. It is written under a temporary name, and gets
//! its own name when it is complete.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use crate::failure::{Failure, Result, cannot, name};

pub(crate) struct Target {
    /// The path of DST, or of the file that a link at DST leads to.
    pub(crate) dst: PathBuf,
    pub(crate) file: Arc<File>,
    /// The path of the temporary file, or `None` once the file is DST.
    temporary: Option<PathBuf>,
    existing: Existing,
}

/// Says what happens if DST exists.
#[derive(Clone, Copy, PartialEq)]
enum Existing {
    /// The existing file is replaced.
    Replaced,
    /// An existing file is an error; the user can replace it by `--force`.
    Refused,
    /// An existing file is an error, and so is a file system that cannot detect one at the end.
    Kept,
}

impl Target {
    /// Creates the temporary file beside DST, with the permissions of SRC.
    pub(crate) fn create(dst: &Path, src: &Metadata, force: bool) -> Result<Target> {
        check(dst, Some(src), force)?;
        Target::replacing(dst, src.mode() & 0o777, force)
    }

    /// Creates the temporary file of a DST that is generated and not copied from a file.
    pub(crate) fn create_made(dst: &Path, force: bool) -> Result<Target> {
        check(dst, None, force)?;
        Target::replacing(dst, 0o666, force)
    }

    fn replacing(dst: &Path, mode: u32, force: bool) -> Result<Target> {
        let existing = match force {
            true => Existing::Replaced,
            false => Existing::Refused,
        };
        // With `force`, a link stays and the file that it leads to is replaced.
        let dst = match force {
            true => fs::canonicalize(dst).unwrap_or_else(|_| dst.to_owned()),
            false => dst.to_owned(),
        };
        Target::begin(dst, mode, existing)
    }

    /// Creates the temporary file of a DST that never replaces another file. Only the owner can
    /// access it.
    pub(crate) fn create_new(dst: PathBuf) -> Result<Target> {
        if fs::symlink_metadata(&dst).is_ok() {
            return Err(exists(&dst, Existing::Kept));
        }
        Target::begin(dst, 0o600, Existing::Kept)
    }

    fn begin(dst: PathBuf, mode: u32, existing: Existing) -> Result<Target> {
        let (file, temporary) = temporary(&dst, mode)?;
        Ok(Target {
            dst,
            file: Arc::new(file),
            temporary: Some(temporary),
            existing,
        })
    }

    /// Gives the file DST's name.
    pub(crate) fn publish(mut self) -> Result {
        let Some(temporary) = &self.temporary else {
            return Ok(());
        };
        // A hard link fails if DST has appeared meanwhile; a rename would replace that file.
        let linked = match self.existing {
            Existing::Replaced => None,
            _ => Some(fs::hard_link(temporary, &self.dst)),
        };
        match linked {
            // The temporary name is removed when `self` is dropped.
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(exists(&self.dst, self.existing));
            }
            Some(Err(error)) if self.existing == Existing::Kept => {
                return Err(cannot("link", &self.dst)(error).into());
            }
            // The user wants to replace the file, or the file system has no hard links.
            _ => {}
        }
        fs::rename(temporary, &self.dst).map_err(cannot("write", &self.dst))?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

fn exists(dst: &Path, existing: Existing) -> Failure {
    Failure::Failed(match existing {
        // The sender gets this text, which therefore does not name the folder.
        Existing::Kept => {
            let name = name(dst.file_name().unwrap_or(dst.as_os_str()).as_ref());
            format!("{name} exists and is kept: send the file by another --name")
        }
        _ => format!("{} exists: --force replaces it", name(dst)),
    })
}

/// Refuses a DST that is SRC, that is not a regular file, or that exists, unless `force` is set.
fn check(dst: &Path, src: Option<&Metadata>, force: bool) -> Result {
    let meta = match fs::metadata(dst) {
        Ok(meta) => meta,
        // A link that leads nowhere exists nevertheless.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match fs::symlink_metadata(dst).is_ok() && !force {
                true => Err(exists(dst, Existing::Refused)),
                false => Ok(()),
            };
        }
        Err(error) => return Err(cannot("write", dst)(error).into()),
    };
    if src.is_some_and(|src| (meta.dev(), meta.ino()) == (src.dev(), src.ino())) {
        let text = format!("{} is SRC itself: name another file", name(dst));
        return Err(Failure::Failed(text));
    }
    if meta.is_dir() {
        let text = format!("{} is a directory: name a file in it", name(dst));
        return Err(Failure::Failed(text));
    }
    if !meta.is_file() {
        let text = format!("{} is no regular file: name another one", name(dst));
        return Err(Failure::Failed(text));
    }
    if force {
        Ok(())
    } else {
        Err(exists(dst, Existing::Refused))
    }
}

/// Creates a file with an unused name in the folder of DST.
fn temporary(dst: &Path, mode: u32) -> Result<(File, PathBuf)> {
    let mut number = 0;
    loop {
        let path = dst.with_file_name(format!(".tokio-doca.{}.{number}", process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode);
        match options.open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(cannot("create", dst)(error).into()),
        }
    }
}
