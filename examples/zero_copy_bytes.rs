//! Sends a file to a TCP socket through Bufs and `Bytes`, without copying the data in this program:
//! `zero_copy_bytes FILE [ADDRESS]`.
//!
//! The file is read into the tailroom of pooled Bufs, each Buf becomes a `Bytes`, and the socket is
//! written from there, two `Bytes` at a time. When a `Bytes` is dropped, its Buf returns to the
//! pool. Without an address the receiver is in this process: it appends the data to a Buf, which is
//! a `BufMut`, and at the end the checksums are compared.
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_doca::{BufPool, Device, Mmap};

const CHUNK: usize = 64 << 10;
const BUFS: usize = 8;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (code, message) = match &args[..] {
        [file, address @ ..] if address.len() < 2 => match run(file, address.first()).await {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("zero_copy_bytes: {error}")),
        },
        _ => (2, "usage: zero_copy_bytes FILE [ADDRESS]".into()),
    };
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}

async fn run(path: &Path, address: Option<&PathBuf>) -> Result<()> {
    let file = open(path)?;
    let device = Device::open_default()?;
    let mmap = Mmap::builder().device(&device).alloc(2 * BUFS * CHUNK)?;
    let half = |range| {
        BufPool::builder(&mmap)
            .range(range)
            .element_size(CHUNK)
            .build()
    };
    let (ours, theirs) = (
        half(0..BUFS * CHUNK)?,
        half(BUFS * CHUNK..2 * BUFS * CHUNK)?,
    );

    let start = Instant::now();
    let (sent, verdict) = match address {
        Some(address) => {
            let address = address.to_string_lossy();
            let socket = TcpStream::connect(&*address).await;
            let socket = socket.map_err(|e| format!("cannot connect to {address}: {e}"))?;
            let sent = send(file, path, &ours, socket).await?;
            (
                sent,
                "not verified: the other end is another process".to_owned(),
            )
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let socket = TcpStream::connect(listener.local_addr()?).await?;
            let (other, _) = listener.accept().await?;
            let (sent, arrived) =
                tokio::try_join!(send(file, path, &ours, socket), receive(&theirs, other))?;
            (sent, verify(path, sent, arrived)?)
        }
    };
    let took = start.elapsed();
    let rate = sent as f64 / 1e6 / took.as_secs_f64();
    let text = format!(
        "sent {sent} bytes in {took:.1?}: {rate:.0} MB/s, through {BUFS} Bufs of {CHUNK} bytes"
    );
    Ok(writeln!(io::stdout(), "{text}\n{verdict}")?)
}

/// Opens the file after checking its type, since opening a pipe would wait for its other end.
fn open(path: &Path) -> Result<Arc<File>> {
    let meta = fs::metadata(path).map_err(cannot("open", path))?;
    if meta.is_dir() {
        return Err(format!("{} is a directory: name a file", path.display()).into());
    }
    if !meta.is_file() {
        return Err(format!("{} is no regular file", path.display()).into());
    }
    Ok(Arc::new(File::open(path).map_err(cannot("open", path))?))
}

/// Sends the file, and returns the number of bytes.
async fn send(file: Arc<File>, path: &Path, pool: &BufPool, socket: TcpStream) -> Result<u64> {
    let (ready, next) = mpsc::channel(BUFS);
    let ((), sent) = tokio::try_join!(read(file, path, pool, ready), write(next, socket))?;
    Ok(sent)
}

/// Reads the file ahead of the socket, as far as there are free Bufs.
async fn read(
    file: Arc<File>,
    path: &Path,
    pool: &BufPool,
    ready: mpsc::Sender<Bytes>,
) -> Result<()> {
    loop {
        let (buf, file) = (pool.alloc().await, Arc::clone(&file));
        let read = spawn_blocking(move || -> io::Result<_> {
            buf.data_mut()?.read_from(&mut &*file)?;
            Ok(buf.into_bytes()?)
        });
        let bytes = read.await?.map_err(cannot("read", path))?;
        // The receiver of the channel is gone: the writer has failed, and reports that itself.
        if bytes.is_empty() || ready.send(bytes).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(mut next: mpsc::Receiver<Bytes>, mut socket: TcpStream) -> Result<u64> {
    let cannot = |e| format!("cannot write to the socket: {e}");
    let mut sent = 0;
    while let Some(first) = next.recv().await {
        let mut both = first.chain(next.try_recv().unwrap_or_default());
        sent += both.remaining() as u64;
        socket.write_all_buf(&mut both).await.map_err(cannot)?;
    }
    socket.shutdown().await.map_err(cannot)?;
    Ok(sent)
}

/// The receiving end. Returns the number of bytes that arrived, and their CRC-32C.
async fn receive(pool: &BufPool, mut socket: TcpStream) -> Result<(u64, u32)> {
    let (buf, mut crc, mut arrived) = (pool.alloc().await, 0, 0);
    loop {
        buf.reset_data_len()?;
        let mut data = buf.data_mut()?;
        let read = socket.read_buf(&mut data).await?;
        if read == 0 {
            return Ok((arrived, crc));
        }
        crc = crc32c::crc32c_append(crc, &data);
        arrived += read as u64;
    }
}

/// Reads the file once more, through memory that the transfer did not use, and compares the
/// checksums.
fn verify(path: &Path, sent: u64, (arrived, crc): (u64, u32)) -> Result<String> {
    let file = File::open(path).map_err(cannot("read", path))?;
    let (mut file, mut own) = (BufReader::with_capacity(CHUNK, file), 0);
    while let bytes @ [_, ..] = file.fill_buf().map_err(cannot("read", path))? {
        own = crc32c::crc32c_append(own, bytes);
        let len = bytes.len();
        file.consume(len);
    }
    if (sent, own) != (arrived, crc) {
        return Err(format!(
            "{sent} bytes were sent, and FILE has the CRC-32C {own:08x}; {arrived} arrived, with the CRC-32C {crc:08x}"
        )
        .into());
    }
    Ok(format!(
        "verified: FILE, and what arrived, have the CRC-32C {crc:08x}"
    ))
}

/// Adds the file's name to an I/O error.
fn cannot(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}
