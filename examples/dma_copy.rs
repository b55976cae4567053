//! Copies a file through awaitable DMA jobs, and verifies the copy: `dma_copy SRC DST [DEVICE]`.
//!
//! Each of eight lanes takes the next chunk, reads it into a pooled Buf, has the device copy it to
//! another Buf, and writes that Buf to the chunk's offset in DST. Reading, copying and writing
//! overlap, and a file of any size needs 16 MiB of Bufs. At the end, both files are read once more,
//! one after the other, and their checksums are compared.
use std::cell::Cell;
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_doca::{BufPool, Device, Dma, Mmap, WorkQ};

const CHUNK: usize = 1 << 20;
const LANES: usize = 8;
/// A chunk takes a device less than a millisecond. A job that takes this long is lost.
const LIMIT: Duration = Duration::from_secs(5);

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (code, message) = match &args[..] {
        [src, dst, device @ ..] if device.len() < 2 => match run(src, dst, device.first()) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("dma_copy: {error}")),
        },
        _ => (2, "usage: dma_copy SRC DST [DEVICE]".into()),
    };
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}

fn run(src: &Path, dst: &Path, device: Option<&PathBuf>) -> Result<()> {
    let device = match device {
        Some(name) => Device::open(&name.to_string_lossy())?,
        None => Device::open_default()?,
    };
    let mmap = Mmap::builder().device(&device).alloc(2 * LANES * CHUNK)?;
    let pool = BufPool::builder(&mmap).element_size(CHUNK).build()?;
    let dma = Dma::builder(&device).attach(&WorkQ::builder().build()?)?;
    let (from, to, size) = open(src, dst)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let to_file = to.metadata()?.is_file();

    let start = Instant::now();
    let mut result = runtime.block_on(copy(&pool, &dma, (src, from), (dst, Arc::clone(&to)), size));
    let took = start.elapsed();
    let mut verdict = "not verified: DST is a device, which cannot be read back".to_owned();
    if to_file {
        if result.is_ok() {
            result = verify(src, dst, &to).map(|text| verdict = text);
        }
        // After a failure DST is incomplete, and the error must say so.
        let spoilt =
            |e| format!("{e}; {} is no complete copy, do not use it", dst.display()).into();
        result = result.map_err(spoilt);
    }
    result?;
    let rate = size as f64 / 1e6 / took.as_secs_f64();
    let (jobs, name) = (device.jobs().unwrap_or_default(), device.info().name());
    let text =
        format!("copied {size} bytes in {took:.1?}: {rate:.0} MB/s, {jobs} DMA jobs on {name}");
    Ok(writeln!(io::stdout(), "{text}\n{verdict}")?)
}

type End<'a> = (&'a Path, Arc<File>);

/// Copies `size` bytes. After a failure, a job in flight may never complete: it keeps its Bufs, and
/// nothing waits for it.
async fn copy(
    pool: &BufPool,
    dma: &Dma,
    (src, from): End<'_>,
    (dst, to): End<'_>,
    size: u64,
) -> Result<()> {
    let (next, progress) = (Cell::new(0), Progress::new(size));
    let lane = async || -> Result<()> {
        while next.get() < size {
            let at = next.replace(next.get() + CHUNK as u64);
            let len = CHUNK.min((size - at) as usize);
            let (full, empty) = (pool.alloc().await, pool.alloc().await);
            let file = Arc::clone(&from);
            let read = spawn_blocking(move || -> io::Result<_> {
                full.set_data(0, len)?;
                file.read_exact_at(&mut full.data_mut()?, at)?;
                Ok(full)
            });
            let full = read.await?.map_err(cannot("read", src))?;
            let copied = timeout(LIMIT, dma.copy(&full, &empty)).await;
            copied.map_err(|_| {
                format!("the device did not copy the chunk at byte {at} within {LIMIT:?}")
            })??;
            let file = Arc::clone(&to);
            let write = spawn_blocking(move || file.write_all_at(&empty.data()?, at));
            write.await?.map_err(cannot("write", dst))?;
            progress.add(len as u64);
        }
        Ok(())
    };
    try_join_all((0..LANES).map(|_| lane())).await?;
    Ok(dma.workq().shutdown().await?)
}

/// Adds the file's name to an I/O error.
fn cannot(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

/// Opens both files, and then empties DST. Fails before that if both are the same file, under any
/// names. Also returns the size of SRC.
fn open(src: &Path, dst: &Path) -> Result<(Arc<File>, Arc<File>, u64)> {
    let check = |path: &Path, meta: &Metadata, good: bool| match good {
        true => Ok(()),
        false if meta.is_dir() => Err(format!("{} is a directory: name a file", path.display())),
        false => Err(format!("{} is no regular file", path.display())),
    };
    // The file's type is checked before it is opened, since opening a pipe would wait for its other
    // end.
    let from = fs::metadata(src).map_err(cannot("open", src))?;
    check(src, &from, from.is_file())?;
    let check_dst = |to: Metadata| {
        if (to.dev(), to.ino()) == (from.dev(), from.ino()) {
            return Err(format!("{} is SRC itself: nothing was done", dst.display()));
        }
        check(dst, &to, to.is_file() || to.file_type().is_char_device())
    };
    match fs::metadata(dst) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        meta => check_dst(meta.map_err(cannot("open", dst))?)?,
    }
    let source = File::open(src).map_err(cannot("open", src))?;
    let mut options = File::options();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(from.mode() & 0o777);
    let file = options.open(dst).map_err(cannot("open", dst))?;
    // Checks DST once more: the file may have been replaced since the first check.
    check_dst(file.metadata()?)?;
    if file.metadata()?.is_file() {
        file.set_len(0).map_err(cannot("empty", dst))?;
    }
    Ok((Arc::new(source), Arc::new(file), from.len()))
}

/// Reads both files once more, one after the other, through memory that the copies did not use.
fn verify(src: &Path, dst: &Path, written: &File) -> Result<String> {
    // A full disk may be reported only at this point.
    written.sync_all().map_err(cannot("write", dst))?;
    let (a, b) = (checksum(src)?, checksum(dst)?);
    if a != b {
        return Err(format!("SRC has the CRC-32C {a:08x}, and DST, read back, {b:08x}").into());
    }
    Ok(format!(
        "verified: SRC, and DST read back, have the CRC-32C {a:08x}"
    ))
}

fn checksum(path: &Path) -> Result<u32> {
    let file = File::open(path).map_err(cannot("read", path))?;
    let (mut file, mut crc) = (BufReader::with_capacity(CHUNK, file), 0);
    while let bytes @ [_, ..] = file.fill_buf().map_err(cannot("read", path))? {
        crc = crc32c::crc32c_append(crc, bytes);
        let len = bytes.len();
        file.consume(len);
    }
    Ok(crc)
}

/// A progress bar on stderr, drawn only if stderr is a terminal.
struct Progress(u64, Cell<u64>, Cell<Option<Instant>>);

impl Progress {
    fn new(size: u64) -> Progress {
        let drawn = io::stderr().is_terminal().then(Instant::now);
        Progress(size, Cell::new(0), Cell::new(drawn))
    }

    fn add(&self, bytes: u64) {
        let Progress(size, done, drawn) = self;
        done.set(done.get() + bytes);
        if drawn
            .get()
            .is_some_and(|drawn| drawn.elapsed() > Duration::from_millis(50))
        {
            drawn.set(Some(Instant::now()));
            let (percent, mb) = (done.get() * 100 / size, done.get() / 1_000_000);
            let bar = "#".repeat(percent as usize / 2);
            let _ = write!(io::stderr(), "\r[{bar:<50}] {percent:3} % {mb} MB");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.2.get().is_some() {
            // Returns to the start of the line, and clears it.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
