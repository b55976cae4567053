//! The file that becomes DST: it is written under another name, and renamed when it is whole.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use crate::failure::{Failure, Result, cannot, name};

pub(super) struct Target {
    /// DST, or the file that a link of this name leads to.
    pub(super) dst: PathBuf,
    pub(super) file: Arc<File>,
    /// Where it is until it is whole; `None` once it is DST.
    temporary: Option<PathBuf>,
    force: bool,
}

impl Target {
    /// Creates the temporary file beside DST, with the permissions of SRC.
    pub(super) fn create(dst: &Path, src: &Metadata, force: bool) -> Result<Target> {
        check(dst, src, force)?;
        // What a link leads to is replaced, and not the link.
        let dst = match force {
            true => fs::canonicalize(dst).unwrap_or_else(|_| dst.to_owned()),
            false => dst.to_owned(),
        };
        let (file, temporary) = temporary(&dst, src.mode() & 0o777)?;
        Ok(Target {
            dst,
            file: Arc::new(file),
            temporary: Some(temporary),
            force,
        })
    }

    /// Gives the file DST's name.
    pub(super) fn publish(mut self) -> Result {
        let Some(temporary) = &self.temporary else {
            return Ok(());
        };
        // A link fails if DST has come meanwhile; a rename would replace it.
        let linked = match self.force {
            true => None,
            false => Some(fs::hard_link(temporary, &self.dst)),
        };
        match linked {
            // The other name goes when `self` is dropped.
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(exists(&self.dst));
            }
            // Replacing was asked for, or the file system has no hard links.
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

fn exists(dst: &Path) -> Failure {
    Failure::Failed(format!("{} exists: --force replaces it", name(dst)))
}

/// Refuses a DST that is SRC, that is no file, or that exists.
fn check(dst: &Path, src: &Metadata, force: bool) -> Result {
    let meta = match fs::metadata(dst) {
        Ok(meta) => meta,
        // A link that leads nowhere is there all the same.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match fs::symlink_metadata(dst).is_ok() && !force {
                true => Err(exists(dst)),
                false => Ok(()),
            };
        }
        Err(error) => return Err(cannot("write", dst)(error).into()),
    };
    if (meta.dev(), meta.ino()) == (src.dev(), src.ino()) {
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
    if force { Ok(()) } else { Err(exists(dst)) }
}

/// Creates a file of a name that no other has, in the folder of DST.
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
