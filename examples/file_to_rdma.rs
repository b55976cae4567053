//! Sends a file from the disk to the memory of another process without a copy by the CPU. io_uring
//! reads the file past the page cache into registered Bufs, and RDMA writes send it from there.
//!
//! ```text
//! $ cargo run --release --example file_to_rdma -- receive 127.0.0.1:7090 /tmp/copy
//! $ file_to_rdma send 127.0.0.1:7090 FILE                                  (another terminal)
//! [########################################] 100 %
//! sent: 1073741824 bytes in 0.412 s (2606 MB/s), CRC-32C 5b0e6b1f
//! ```
//!
//! The receiver takes one file. It lends memory for the file once the sender has connected,
//! compares the CRC, and writes the data to a new file. It ignores peers that send no file, one
//! after the other: each may take 10 s, and a second for each MiB. Eight chunks are in flight at
//! once, each being read or written.
#![expect(unsafe_code, reason = "the kernel is told where to read to")]

#[path = "file_transfer/progress.rs"]
mod progress;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use io_uring::{IoUring, opcode, types};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_doca::crc::{Crc, combine};
use tokio_doca::mem::{Access, BufInventory, RemoteMmap};
use tokio_doca::stream::{Incoming, RdmaStream, StreamOptions};
use tokio_doca::{Buf, BufPool, Device, Mmap, WorkQ};

use progress::Progress;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The size of a chunk in bytes: whole pages, as O_DIRECT requires (open(2)).
const CHUNK: usize = 256 << 10;
const PAGE: usize = 4096;
/// The number of chunks in flight.
const CHUNKS: usize = 8;
/// The size of the largest file that a receiver has memory for.
const LARGEST: u64 = 1 << 30;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args[..] {
        ["receive", addr, path] => receive(addr, path).await,
        ["send", addr, path] => send(addr, path).await,
        _ => Err("usage: file_to_rdma receive ADDR NEW_FILE | send ADDR FILE".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "file_to_rdma: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Receives a file. Removes the file unless all of it has arrived.
async fn receive(addr: &str, path: &str) -> Result {
    let mut file = File::create_new(path).map_err(|error| format!("{path}: {error}"))?;
    let received = receive_to(addr, &mut file).await;
    if received.is_err() {
        std::fs::remove_file(path)?;
    }
    received
}

async fn receive_to(addr: &str, file: &mut File) -> Result {
    let device = Device::open_default()?;
    let workq = WorkQ::builder().build()?;
    // Other peers may be connected beside the sender, before they have announced a file.
    let options = StreamOptions::new().connections(16);
    let options = options.permissions(Access::RDMA_WRITE);
    let addr: SocketAddr = addr.parse()?;
    let listener = options.bind(&device, &workq, addr).await?;
    writeln!(io::stdout(), "Listening on {}", listener.local_addr())?;
    let mut meetings = FuturesUnordered::new();
    let (mut stream, whole, crc) = loop {
        let met = tokio::select! {
            incoming = listener.accept() => {
                meetings.push(meet(incoming?));
                continue;
            }
            Some(met) = meetings.next() => met,
        };
        let taken = async {
            let (stream, len) = met?;
            let limit = Duration::from_secs(10 + (len as u64 >> 20));
            timeout(limit, take(&device, &workq, stream, len)).await?
        };
        match taken.await {
            Ok(taken) => break taken,
            Err(error) => _ = writeln!(io::stderr(), "file_to_rdma: a sender: {error}"),
        }
    };
    // The sender may still write to the memory. Such a Buf lends no slices, so that the data is
    // copied out.
    let (len, mut chunk) = (whole.data_len(), vec![0; CHUNK]);
    for at in (0..len).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(len - at)];
        whole.copy_out(at, chunk)?;
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    stream.write_u8(1).await?;
    stream.shutdown().await?;
    writeln!(io::stdout(), "received: {len} bytes, CRC-32C {crc:08x}")?;
    Ok(())
}

/// Waits for the connection of a peer, which announces the length of its file.
async fn meet(incoming: Incoming) -> Result<(RdmaStream, usize)> {
    let len = incoming.data().try_into().map_or(0, u64::from_le_bytes);
    if !(1..=LARGEST).contains(&len) {
        let text = format!("{len} bytes: a file has 1 to {LARGEST}");
        incoming.refuse(&text).await?;
        return Err(text.into());
    }
    Ok((incoming.accept(b"").await?, len as usize))
}

/// Lends memory to a sender, and returns its data once all of it has arrived.
async fn take(
    device: &Device,
    workq: &WorkQ,
    mut stream: RdmaStream,
    len: usize,
) -> Result<(RdmaStream, Buf, u32)> {
    let memory = Mmap::builder().device(device);
    let memory = memory.access(Access::LOCAL_READ_WRITE | Access::RDMA_WRITE);
    let memory = memory.alloc(len)?;
    let blob = memory.export_rdma(device)?;
    stream.write_u16_le(blob.len() as u16).await?;
    stream.write_all(&blob).await?;
    // The sender's CRC arrives after all that it has written.
    let sent = stream.read_u32_le().await?;
    let whole = BufInventory::with_capacity(1).buf_filled(&memory, ..)?;
    let crc = Crc::builder(device).attach(workq)?.crc32c(&whole).await?;
    match crc == sent {
        true => Ok((stream, whole, crc)),
        false => Err(format!("{crc:08x} arrived, and {sent:08x} was sent").into()),
    }
}

async fn send(addr: &str, path: &str) -> Result {
    let device = Device::open_default()?;
    let workq = WorkQ::builder().build()?;
    let (file, len) = open(path).map_err(|error| format!("{path}: {error}"))?;
    let connector = StreamOptions::new().connections(1);
    let connector = connector.connector(&device, &workq)?;
    let addr: SocketAddr = addr.parse()?;
    let (mut stream, _) = connector.connect_with(addr, &len.to_le_bytes()).await?;
    let mut blob = vec![0; stream.read_u16_le().await?.into()];
    stream.read_exact(&mut blob).await?;
    let memory = RemoteMmap::from_export(&device, &blob).await?;
    let rdma = stream.rdma().expect("TCP was not allowed").clone();
    let crc = Crc::builder(&device).attach(&workq)?;

    let chunks = Mmap::builder().device(&device).alloc(CHUNKS * CHUNK)?;
    let pool = BufPool::builder(&chunks).element_size(CHUNK);
    let pool = pool.alignment(PAGE).build()?;
    let mut reader = Reader::new(file, &pool)?;
    let mut progress = Progress::new(len, false);
    let mut sums = vec![0; len.div_ceil(CHUNK as u64) as usize];
    let (mut writes, mut next, mut done) = (FuturesUnordered::new(), 0, 0);
    while done < len {
        while next < len && reader.read(next) {
            next += CHUNK as u64;
        }
        tokio::select! {
            read = reader.next(), if reader.is_reading() => {
                let (chunk, at, came) = read?;
                let expected = (len - at).min(CHUNK as u64) as usize;
                if came < expected {
                    return Err(format!("{path}: a read was short: the file may have been cut").into());
                }
                let place = memory.buf(at as usize..at as usize + expected)?;
                let (rdma, crc) = (&rdma, &crc);
                writes.push(async move {
                    let buf = &chunk.1;
                    buf.set_data(0, expected)?;
                    let (sum, _) = futures::try_join!(crc.crc32c(buf), rdma.write(buf, &place))?;
                    Result::<_>::Ok((chunk, at, expected, sum))
                });
            }
            Some(written) = writes.next() => {
                let (chunk, at, came, sum) = written?;
                sums[at as usize / CHUNK] = sum;
                reader.give_back(chunk);
                done += came as u64;
                progress.at(done);
            }
        }
    }
    let last = (len - 1) as usize % CHUNK + 1;
    let lens = (1..sums.len()).map(|_| CHUNK).chain([last]);
    let sums = sums.iter().zip(lens);
    let sum = sums.fold(0, |sum, (&next, len)| combine(sum, next, len));
    stream.write_u32_le(sum).await?;
    stream.read_u8().await?;
    progress.end("sent", "CRC-32C", sum)
}

/// Opens a file for reads past the page cache, if its file system supports that.
fn open(path: &str) -> io::Result<(File, u64)> {
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    let file = match direct {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => File::open(path)?,
        other => other?,
    };
    let meta = file.metadata()?;
    match meta.is_file() && meta.len() > 0 {
        true => Ok((file, meta.len())),
        false => Err(io::Error::other("it is no file with bytes in it")),
    }
}

/// The number of a chunk in the ring, and its Buf.
struct Chunk(usize, Buf);

/// Reads chunks of a file in any order. The memory of all chunks is registered with the kernel at
/// the start.
struct Reader {
    ring: IoUring,
    events: AsyncFd<OwnedFd>,
    file: File,
    /// The address of each chunk's memory.
    places: Vec<*mut u8>,
    free: Vec<Chunk>,
    /// For each chunk that the kernel reads to: its Buf, and the offset in the file.
    reading: Vec<Option<(Chunk, u64)>>,
}

impl Reader {
    fn new(file: File, pool: &BufPool) -> Result<Reader> {
        let ring = IoUring::new(CHUNKS as u32);
        let ring = ring.map_err(|error| format!("io_uring cannot be had here: {error}"))?;
        let (mut free, mut places) = (Vec::new(), Vec::new());
        for number in 0..CHUNKS {
            let buf = pool.try_alloc()?;
            buf.set_data(0, CHUNK)?;
            places.push(buf.data_mut()?.as_mut_ptr());
            free.push(Chunk(number, buf));
        }
        let vectors: Vec<libc::iovec> = places
            .iter()
            .map(|&place| libc::iovec {
                iov_base: place.cast(),
                iov_len: CHUNK,
            })
            .collect();
        // SAFETY: the kernel keeps the pages of a registered buffer, and accesses them only in
        // reads. The proof in `read` covers those.
        unsafe { ring.submitter().register_buffers(&vectors) }
            .map_err(|error| format!("{CHUNKS} buffers cannot be registered: {error}"))?;
        // SAFETY: the ring is alive, so its descriptor is open.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let fd = fd.try_clone_to_owned()?;
        // SAFETY: an OwnedFd stays open and keeps its descriptor until the AsyncFd drops it.
        let events = unsafe { AsyncFd::register(fd) }?;
        Ok(Reader {
            reading: (0..CHUNKS).map(|_| None).collect(),
            ring,
            events,
            file,
            places,
            free,
        })
    }

    fn is_reading(&self) -> bool {
        self.reading.iter().any(Option::is_some)
    }

    fn give_back(&mut self, chunk: Chunk) {
        self.free.push(chunk);
    }

    /// Starts to read the chunk at the file offset `at`. Returns false if no Buf is free.
    fn read(&mut self, at: u64) -> bool {
        let Some(chunk) = self.free.pop() else {
            return false;
        };
        let number = chunk.0;
        let fd = types::Fd(self.file.as_raw_fd());
        let read = opcode::ReadFixed::new(fd, self.places[number], CHUNK as u32, number as u16);
        let entry = read.offset(at).build().user_data(number as u64);
        self.reading[number] = Some((chunk, at));
        // SAFETY: the memory belongs to a Buf, whose only handle is in `reading` until the read has
        // completed, so that nothing else accesses it. If the Reader is dropped earlier, it forgets
        // the Buf.
        unsafe { self.ring.submission().push(&entry) }.expect("as many places as chunks");
        true
    }

    /// Waits for the next chunk that was read. Returns its file offset and the number of bytes
    /// read.
    async fn next(&mut self) -> Result<(Chunk, u64, usize)> {
        loop {
            self.ring.submit()?;
            let ended = self.ring.completion().next();
            if let Some(ended) = ended {
                let read = self.reading[ended.user_data() as usize].take();
                let (chunk, at) = read.ok_or("a read ends once")?;
                let came = ended.result();
                return match came >= 0 {
                    true => Ok((chunk, at, came as usize)),
                    false => Err(io::Error::from_raw_os_error(-came).into()),
                };
            }
            let mut guard = self.events.readable().await?;
            if self.ring.completion().is_empty() {
                guard.clear_ready();
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The kernel may still write to these Bufs, so that they must never be freed.
        std::mem::forget(std::mem::take(&mut self.reading));
    }
}
