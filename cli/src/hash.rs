//! `tokio-doca hash`: prints digests of files as `sha256sum` does.
//!
//! Each file streams through two pooled Bufs: while the device hashes one part, the next part is
//! read. A file of any size needs 2 MiB.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::sha::{Algorithm, Sha};
use tokio_doca::{Buf, BufPool, Device, Mmap, WorkQ};

use crate::failure::{Failure, Result, cannot, name, say, text};
use crate::open;
use crate::output::print_bytes;

/// The size of a part in bytes. All parts but the last must be a multiple of the algorithm's block.
const PART: usize = 1 << 20;
/// A part that takes a device longer than this is stuck.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files to hash, - for stdin
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// sha1, sha256 or sha512
    #[arg(short, long, value_name = "NAME", default_value = "sha256")]
    #[arg(hide_possible_values = true, value_parser = algorithms())]
    algorithm: Algorithm,
    /// The device [default: the first that copies]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
}

fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(["sha1", "sha256", "sha512"])
        .try_map(|name| name.parse::<Algorithm>())
}

pub(crate) fn run(args: &Args) -> Result {
    let device = open::device(args.device.as_deref())?;
    let hasher = Hasher::new(&device, args.algorithm)?;
    open::runtime()?.block_on(async {
        let mut end = Ok(());
        for path in &args.files {
            match hash(&hasher, path).await {
                Ok(sum) => print_bytes(&line(&sum, path))?,
                Err(Failure::Failed(text)) => {
                    say(&text);
                    end = Err(Failure::Said);
                }
                Err(failure) => return Err(failure),
            }
        }
        end
    })
}

async fn hash(hasher: &Hasher, path: &Path) -> Result<String> {
    let input: Input = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false if path.is_dir() => return Err(open::no_file("hash", path, "a directory")),
        false => Box::new(File::open(path).map_err(cannot("read", path))?),
    };
    hasher.sum(input, path).await
}

/// Returns a line of `sha256sum`. If a name contains a backslash or a line break, the name is
/// escaped, and the line begins with a backslash.
pub(crate) fn line(sum: &str, path: &Path) -> Vec<u8> {
    let mut escaped = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'\\' => escaped.extend_from_slice(b"\\\\"),
            b'\n' => escaped.extend_from_slice(b"\\n"),
            b'\r' => escaped.extend_from_slice(b"\\r"),
            byte => escaped.push(byte),
        }
    }
    let mark = match escaped.len() == path.as_os_str().len() {
        true => "",
        false => "\\",
    };
    let mut line = format!("{mark}{sum}  ").into_bytes();
    line.append(&mut escaped);
    line.push(b'\n');
    line
}

pub(crate) type Input = Box<dyn Read + Send>;

/// Hashes files with a device.
pub(crate) struct Hasher {
    pool: BufPool,
    digests: BufPool,
    sha: Sha,
    algorithm: Algorithm,
    /// The size in bytes of all parts but the last.
    part: usize,
}

impl Hasher {
    pub(crate) fn new(device: &Device, algorithm: Algorithm) -> Result<Hasher> {
        let sha = Sha::builder(device).attach(&WorkQ::builder().build()?)?;
        // Opening a session also fails if the device lacks this hash.
        drop(sha.session(algorithm)?);
        let block = algorithm.block_len();
        let most = usize::try_from(sha.caps().max_src_len).unwrap_or(PART);
        let part = (most.min(PART) / block * block).max(block);
        let memory = |bytes| Mmap::builder().device(device).alloc(bytes);
        let (parts, digests) = (memory(2 * PART)?, memory(4096)?);
        Ok(Hasher {
            pool: BufPool::builder(&parts).element_size(PART).build()?,
            digests: BufPool::builder(&digests).element_size(64).build()?,
            sha,
            algorithm,
            part,
        })
    }

    /// Returns the digest of `input` in hexadecimal. Errors name the input `path`.
    pub(crate) async fn sum(&self, input: Input, path: &Path) -> Result<String> {
        let late = |_| {
            let (limit, name) = (LIMIT.as_secs(), name(path));
            format!("the device did not hash a part of {name} within {limit} s: try --device")
        };
        let failed = |error: tokio_doca::error::JobError| {
            let error = text(&error.into());
            format!("the device did not hash {}: {error}", name(path))
        };
        let session = self.sha.session(self.algorithm)?;
        let digest = self.digests.alloc().await;
        let (mut part, mut next) = (self.pool.alloc().await, self.pool.alloc().await);
        let read = |input, buf: &Buf| read(input, buf.clone(), self.part);
        let (mut input, mut full) = read(input, &part).await.map_err(cannot("read", path))?;
        // Only a part that is not full is certainly the last one.
        while full {
            let (hashed, filled) =
                tokio::join!(timeout(LIMIT, session.update(&part)), read(input, &next));
            hashed.map_err(late)?.map_err(failed)?;
            (input, full) = filled.map_err(cannot("read", path))?;
            std::mem::swap(&mut part, &mut next);
        }
        match part.data_len() {
            0 => timeout(LIMIT, session.finish((), &digest)).await,
            _ => timeout(LIMIT, session.finish(&part, &digest)).await,
        }
        .map_err(late)?
        .map_err(failed)?;
        let digest = digest.data().map_err(failed)?;
        Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Reads until the Buf has `part` bytes or the input ends. Returns true if the Buf has `part`
/// bytes.
async fn read(input: Input, buf: Buf, part: usize) -> io::Result<(Input, bool)> {
    let read = spawn_blocking(move || {
        buf.reset_data_len()?;
        let mut data = buf.data_mut()?;
        let mut left = input.take(part as u64);
        loop {
            match data.read_from(&mut left) {
                Ok(0) => return Ok((left.into_inner(), data.len() == part)),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    });
    read.await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_sha256sum_does() {
        let line = |name: &str| String::from_utf8(line("ab", Path::new(name))).unwrap();
        assert_eq!(line("a b"), "ab  a b\n");
        assert_eq!(line("a\nb"), "\\ab  a\\nb\n");
        assert_eq!(line("a\\b\r"), "\\ab  a\\\\b\\r\n");
    }
}
