//! A network block device over Tokio: `nbd-client`, `qemu` and libnbd read and write one Mmap.
//!
//! ```text
//! $ cargo run --release --example nbd_server -- --socket /tmp/disk.sock
//! $ nbdinfo nbd+unix:///?socket=/tmp/disk.sock                (another terminal)
//! $ nbdcopy some.img nbd+unix:///?socket=/tmp/disk.sock
//! ```
//!
//! A read hands a slice of the disk's memory to the socket, without a copy. The data of a write is
//! received into a Buf of a pool, and a DMA job copies it to the disk. Trims write zeroes by jobs
//! as well, and free no space. With `--file` the disk is a mapped file: acknowledged writes survive
//! the end of this process, and flushed writes a crash of the machine. With `--checksums` each
//! write is copied with its CRC-32C in the same pass, and read back.
//!
//! The server does not trust clients. What a client sends is bounded, each request is checked
//! against the disk, and a client that keeps the server waiting too long within a request is
//! disconnected (`--stall-ms`). A client that does not read its answers blocks no other. A client
//! gets a place only once it has chosen an export. Between two requests a client may be idle for
//! any time, and keeps its place among at most [`CLIENTS`].
//!
//! The file is used as memory: if it cannot be read or written (a bad sector), the kernel kills the
//! server (SIGBUS). All blocks of a writable file are allocated at the start, so that this does not
//! happen when the file system is full.

#[path = "../arrivals/mod.rs"]
mod arrivals;
mod disk;
#[path = "../file_limit/mod.rs"]
mod file_limit;
#[path = "../flags/mod.rs"]
mod flags;
mod handshake;
mod mapped;
mod transmission;
mod wire;

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::sleep;
use tokio_doca::Device;

use arrivals::{Arrival, Arrivals};
use disk::Disk;
use flags::{Flag, Program, Values};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The maximum number of clients. Others wait until one leaves, or their time limit has passed.
const CLIENTS: usize = 64;
/// The time in which a client must choose an export.
const GREETED: Duration = Duration::from_secs(10);
/// Pause after the server could not accept a client, for instance for lack of a descriptor.
const PAUSE: Duration = Duration::from_millis(100);

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
            help: "the file that is the disk (default: memory); a bad sector of it kills the server",
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
            short: "",
            long: "--stall-ms",
            value: "MS",
            default: "30000",
            help: "how long a request may wait for its client, and a second more for each MiB",
        },
        Flag {
            short: "-c",
            long: "--checksums",
            value: "",
            default: "",
            help: "reads each write back, and says the disk's CRC-32C when a client that had it leaves",
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
    let mut arrivals = Arrivals::new(CLIENTS, GREETED);
    if !tcp.is_empty() {
        let listener = TcpListener::bind(tcp).await?;
        said(&format!("Listening on {}", listener.local_addr()?));
        loop {
            let Some((stream, _)) = accepted(listener.accept().await, &mut arrivals).await else {
                continue;
            };
            match stream.set_nodelay(true) {
                Ok(()) => _ = tokio::spawn(serve(Arc::clone(&disk), stream, arrivals.next().await)),
                Err(error) => complain("a client", &error),
            }
        }
    }
    if socket.is_empty() {
        return Err("where? --socket PATH or --tcp ADDRESS".into());
    }
    remove_stale(socket).await;
    let listener = UnixListener::bind(socket)?;
    said(&format!("Listening on {socket}"));
    loop {
        if let Some((stream, _)) = accepted(listener.accept().await, &mut arrivals).await {
            tokio::spawn(serve(Arc::clone(&disk), stream, arrivals.next().await));
        }
    }
}

/// Removes a socket that a killed server has left, and nothing else.
async fn remove_stale(socket: &str) {
    let is_socket = std::fs::symlink_metadata(socket).is_ok_and(|it| it.file_type().is_socket());
    let connected = UnixStream::connect(socket).await;
    if is_socket && connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(socket);
    }
}

/// Returns the client, or `None` after a failed accept, which does not end the server.
async fn accepted<T>(client: io::Result<T>, arrivals: &mut Arrivals) -> Option<T> {
    if let Err(error) = &client {
        complain("accept", error);
        arrivals.oldest_leaves().await;
        sleep(PAUSE).await;
    }
    client.ok()
}

/// Serves one client until it disconnects.
async fn serve<S>(disk: Arc<Disk>, stream: S, arrival: Arrival)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut stream = BufReader::new(stream);
    let greet = async { Ok(handshake::greet(&disk, &mut stream).await?) };
    let (agreed, _place) = match arrival.place(greet).await {
        Ok((Some(agreed), place)) => (agreed, place),
        Ok((None, _)) => return,
        Err(error) => return complain("a client", &error),
    };
    if let Err(error) = transmission::serve(&disk, &mut stream, agreed).await {
        complain("a client", &error);
    }
    if disk.checksums {
        match disk.checksum().await {
            Ok(crc) => said(&format!("crc32c {crc:08x}")),
            Err(error) => complain("the disk", &error),
        }
    }
}

fn complain(what: &str, error: &dyn Display) {
    let _ = writeln!(io::stderr(), "nbd_server: {what}: {error}");
}

fn said(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
