//! Hashes files by a device, and prints or checks sums as `sha256sum` does:
//! `sha_file [-a sha1|sha256|sha512] FILE...`, and `sha_file [-a ..] -c SUMS`.
//!
//! Each file streams through two pooled Bufs: while the device hashes one part, the next is read. A
//! file of any size takes 2 MiB. `-` is the standard input.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::{
    Buf, BufPool, Device, Mmap, WorkQ,
    sha::{Algorithm, Sha},
};

/// The size of a part in bytes. All parts but the last must be a multiple of the algorithm's block.
const PART: usize = 1 << 20;
/// A part that takes a device longer than this is stuck.
const LIMIT: Duration = Duration::from_secs(5);

const USAGE: &str =
    "usage: sha_file [-a sha1|sha256|sha512] FILE...  or  sha_file [-a ALGORITHM] -c SUMS";

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let (mut algorithm, mut check, mut files) = (Ok(Algorithm::Sha256), false, Vec::new());
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-a") => {
                let name = args.next().unwrap_or_default();
                algorithm = name.to_string_lossy().parse();
            }
            Some("-c") => check = true,
            _ => files.push(PathBuf::from(arg)),
        }
    }
    let (code, message) = match (algorithm, &files[..]) {
        (_, []) => (2, USAGE.to_owned()),
        (_, [_, _, ..]) if check => (2, USAGE.to_owned()),
        (Err(error), _) => (1, format!("sha_file: {error}")),
        (Ok(algorithm), files) => match run(algorithm, check, files) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("sha_file: {error}")),
        },
    };
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}

fn run(algorithm: Algorithm, check: bool, files: &[PathBuf]) -> Result<()> {
    let device = Device::open_default()?;
    let mmap = Mmap::builder().device(&device).alloc(2 * PART)?;
    let hasher = Hasher {
        pool: BufPool::builder(&mmap).element_size(PART).build()?,
        digests: BufPool::builder(&Mmap::builder().device(&device).alloc(4096)?)
            .element_size(64)
            .build()?,
        sha: Sha::builder(&device).attach(&WorkQ::builder().build()?)?,
        algorithm,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match check {
            true => check_sums(&hasher, &files[0]).await,
            false => print_sums(&hasher, files).await,
        }
    })
}

struct Hasher {
    pool: BufPool,
    digests: BufPool,
    sha: Sha,
    algorithm: Algorithm,
}

impl Hasher {
    /// Returns the digest of a file, in hexadecimal.
    async fn sum(&self, path: &Path) -> Result<String> {
        let cannot = |error| format!("cannot read {}: {error}", path.display());
        let mut input = open(path).map_err(cannot)?;
        let late = |_| {
            format!(
                "the device did not hash a part of {} within {LIMIT:?}",
                path.display()
            )
        };
        let session = self.sha.session(self.algorithm)?;
        let digest = self.digests.alloc().await;
        let (mut part, mut next) = (self.pool.alloc().await, self.pool.alloc().await);
        let mut full;
        (input, full) = read(input, &part).await.map_err(cannot)?;
        // Only a part that is not full is certainly the last one.
        while full {
            let (hashed, read) =
                tokio::join!(timeout(LIMIT, session.update(&part)), read(input, &next));
            hashed.map_err(late)??;
            (input, full) = read.map_err(cannot)?;
            std::mem::swap(&mut part, &mut next);
        }
        match part.data_len() {
            0 => timeout(LIMIT, session.finish((), &digest)).await,
            _ => timeout(LIMIT, session.finish(&part, &digest)).await,
        }
        .map_err(late)??;
        let digest = digest.data()?;
        Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

type Input = Box<dyn Read + Send>;

fn open(path: &Path) -> io::Result<Input> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin()));
    }
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    Ok(Box::new(File::open(path)?))
}

/// Reads until the Buf is full or the input ends. Returns true if the Buf is full.
async fn read(mut input: Input, buf: &Buf) -> io::Result<(Input, bool)> {
    let buf = buf.clone();
    let read = spawn_blocking(move || {
        buf.reset_data_len()?;
        let mut data = buf.data_mut()?;
        loop {
            match data.read_from(&mut input) {
                Ok(0) => return Ok((input, data.len() == PART)),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    });
    read.await?
}

/// Prints `DIGEST  FILE` for each file. Errors are reported together at the end.
async fn print_sums(hasher: &Hasher, files: &[PathBuf]) -> Result<()> {
    let mut wrong = Vec::new();
    for path in files {
        match hasher.sum(path).await {
            Ok(sum) => {
                let mut line = format!("{sum}  ").into_bytes();
                line.extend_from_slice(path.as_os_str().as_bytes());
                line.push(b'\n');
                io::stdout().write_all(&line)?;
            }
            Err(error) => wrong.push(error.to_string()),
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ").into()),
    }
}

/// Hashes the files that SUMS lists, and prints for each whether it has its listed digest.
async fn check_sums(hasher: &Hasher, sums: &Path) -> Result<()> {
    let text = match sums.as_os_str() == "-" {
        true => io::read_to_string(io::stdin()).map(String::into_bytes),
        false => fs::read(sums),
    };
    let text = text.map_err(|error| format!("cannot read {}: {error}", sums.display()))?;
    let digits = 2 * hasher.algorithm.digest_len();
    let (mut files, mut wrong) = (0, 0);
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        // The digest is followed by two spaces, or by a space and the star of binary mode.
        let parts = line.split_at_checked(digits).and_then(|(sum, rest)| {
            let sum = std::str::from_utf8(sum).ok()?;
            let name = rest.strip_prefix(b"  ").or(rest.strip_prefix(b" *"))?;
            let is_sum = sum.bytes().all(|byte| byte.is_ascii_hexdigit());
            (is_sum && !name.is_empty()).then_some((sum, name))
        });
        let Some((sum, name)) = parts else {
            let (name, line) = (sums.display(), at + 1);
            let algorithm = hasher.algorithm;
            return Err(format!("{name}, line {line}: no {algorithm} sum and file name").into());
        };
        let path = PathBuf::from(OsString::from_vec(name.to_vec()));
        let is = hasher.sum(&path).await?;
        let good = is.eq_ignore_ascii_case(sum);
        let verdict = if good { "OK" } else { "FAILED" };
        writeln!(io::stdout(), "{}: {verdict}", path.display())?;
        files += 1;
        wrong += usize::from(!good);
    }
    match (files, wrong) {
        (0, _) => Err(format!("{}: no sums", sums.display()).into()),
        (_, 0) => Ok(()),
        _ => Err(format!("{wrong} of {files} files differ from their sums").into()),
    }
}
