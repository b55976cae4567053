//! A network block device over Tokio: what `nbd-client`, `qemu` and libnbd read and write is one
//! Mmap.
//!
//! ```text
//! $ cargo run --release --example nbd_server -- --socket /tmp/disk.sock
//! $ nbdinfo nbd+unix:///?socket=/tmp/disk.sock                (another terminal)
//! $ nbdcopy some.img nbd+unix:///?socket=/tmp/disk.sock
//! ```
//!
//! A read hands a slice of the disk's memory to the socket, without a copy of its own. A write
//! comes from the socket into a Buf of a pool, and a DMA job copies it to the disk; trims and
//! zeroes are jobs as well. With `--file` the disk is a file, mapped: acknowledged writes survive
//! this process, and flushed ones the machine. With `--checksums` each write is copied with its
//! CRC-32C in the same pass, and read back.
//!
//! A client is not trusted: what it may send is bounded, each request is checked against the disk,
//! and a client that neither reads nor writes for [`STALLED`] within a request is cut off.

mod disk;
#[path = "../flags/mod.rs"]
mod flags;
mod handshake;
mod mapped;
mod transmission;
mod wire;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_doca::Device;

use disk::Disk;
use flags::{Flag, Program, Values};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The most clients at once. Others wait until one leaves.
const CLIENTS: usize = 64;
/// How long a client may take to choose an export.
const GREETED: Duration = Duration::from_secs(10);
/// How long a client may read and write nothing amid a request.
const STALLED: Duration = Duration::from_secs(30);

const PROGRAM: Program = Program {
    name: "nbd_server",
    about: "Serves memory, or a file, as a network block device.",
    flags: &[
        Flag {
            short: "-s",
            long: "--socket",
            value: "PATH",
            default: "",
            help: "the Unix socket to listen on",
        },
        Flag {
            short: "-t",
            long: "--tcp",
            value: "ADDRESS",
            default: "",
            help: "the TCP address to listen on: whoever reaches it has the disk",
        },
        Flag {
            short: "-n",
            long: "--size",
            value: "BYTES",
            default: "67108864",
            help: "the size of the disk; a file that is there keeps its own",
        },
        Flag {
            short: "-f",
            long: "--file",
            value: "PATH",
            default: "",
            help: "the file that is the disk; memory if there is none",
        },
        Flag {
            short: "-e",
            long: "--export",
            value: "NAME",
            default: "disk",
            help: "the name of the export; clients that name none get it too",
        },
        Flag {
            short: "-r",
            long: "--read-only",
            value: "",
            default: "",
            help: "refuses writes",
        },
        Flag {
            short: "-c",
            long: "--checksums",
            value: "",
            default: "",
            help: "reads each write back, and says the disk's CRC-32C when a client leaves",
        },
    ],
};

fn main() -> ExitCode {
    PROGRAM.run(|values| tokio::runtime::Runtime::new()?.block_on(run(values)))
}

async fn run(values: &Values) -> Result<()> {
    let device = Device::open_default()?;
    let size = values.get("--size").parse()?;
    let file = Some(values.get("--file")).filter(|file| !file.is_empty());
    let disk = Arc::new(Disk::open(&device, file.map(Path::new), size, values)?);
    let (socket, tcp) = (values.get("--socket"), values.get("--tcp"));
    let clients = Arc::new(Semaphore::new(CLIENTS));
    if !tcp.is_empty() {
        let listener = TcpListener::bind(tcp).await?;
        said(&format!("Listening on {}", listener.local_addr()?));
        loop {
            let permit = Arc::clone(&clients).acquire_owned().await?;
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(Arc::clone(&disk), stream, permit));
        }
    }
    if socket.is_empty() {
        return Err("where? --socket PATH or --tcp ADDRESS".into());
    }
    // What a server that was killed has left there.
    if std::os::unix::net::UnixStream::connect(socket).is_err() {
        let _ = std::fs::remove_file(socket);
    }
    let listener = UnixListener::bind(socket)?;
    said(&format!("Listening on {socket}"));
    loop {
        let permit = Arc::clone(&clients).acquire_owned().await?;
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(Arc::clone(&disk), stream, permit));
    }
}

/// One client, to its end.
async fn serve<S>(disk: Arc<Disk>, stream: S, _permit: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut stream = BufReader::new(stream);
    let ended = match timeout(GREETED, handshake::greet(&disk, &mut stream)).await {
        Ok(Ok(Some(agreed))) => transmission::serve(&disk, &mut stream, agreed).await,
        Ok(Ok(None)) => Ok(()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    if let Err(error) = ended {
        let _ = writeln!(io::stderr(), "nbd_server: a client: {error}");
    }
    if disk.checksums {
        match disk.checksum().await {
            Ok(crc) => said(&format!("crc32c {crc:08x}")),
            Err(error) => _ = writeln!(io::stderr(), "nbd_server: {error}"),
        }
    }
}

fn said(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
