//! How two processes exchange the blobs that `connect` and the import of memory need: by files, as
//! DOCA's samples do, or by one TCP connection.
//!
//! A process that can read these blobs can use the connection or the memory. Therefore only the
//! user can read the files, and the network must be trusted.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_doca::{Device, Error, ErrorKind, Mmap, Rdma, mem::RemoteMmap};

use super::{Args, Result, say};

/// Pause between two checks for a file or a listener.
const AGAIN: Duration = Duration::from_millis(10);

/// Two connected sides, which may still exchange memory exports. Dropping it removes the files that
/// this side has written.
pub struct Meeting<'a> {
    args: &'a Args,
    stream: Option<TcpStream>,
    files: Files,
}

impl<'a> Meeting<'a> {
    /// Connects the two sides.
    pub async fn connect(args: &'a Args, rdma: &Rdma) -> Result<Meeting<'a>> {
        let mut meeting = Meeting {
            args,
            stream: None,
            files: Files(Vec::new()),
        };
        if let Some(address) = args.get("tcp") {
            let late = |_| format!("no peer at {address} within {:?}", args.timeout());
            let meet = timeout(args.timeout(), reach(address, args.listens()));
            let reached = meet.await.map_err(late)?;
            let mut stream = reached.map_err(|error| format!("{address}: {error}"))?;
            let handshake = timeout(args.timeout(), rdma.handshake(&mut stream));
            handshake.await.map_err(late)??;
            meeting.stream = Some(stream);
        } else {
            meeting.files.write(args.local(), &rdma.export()?)?;
            let connect = async |blob: &[u8]| rdma.connect(blob).await;
            wait_for(args.remote(), args.timeout(), connect).await?;
        }
        Ok(meeting)
    }

    /// Sends the export of the memory to the peer.
    pub async fn offer(&mut self, mmap: &Mmap, device: &Device) -> Result<()> {
        let blob = mmap.export_rdma(device)?;
        let Some(stream) = &mut self.stream else {
            return self.files.write(self.args.mmap(), &blob);
        };
        stream.write_u32_le(blob.len().try_into()?).await?;
        stream.write_all(&blob).await?;
        Ok(())
    }

    /// Imports the memory that the peer offers.
    pub async fn import(&mut self, device: &Device) -> Result<RemoteMmap> {
        let import = async |blob: &[u8]| RemoteMmap::from_export(device, blob).await;
        let limit = self.args.timeout();
        let Some(stream) = &mut self.stream else {
            return wait_for(self.args.mmap(), limit, import).await;
        };
        let blob = timeout(limit, blob_of(stream)).await;
        let blob = blob.map_err(|_| format!("the peer offers no memory within {limit:?}"))?;
        Ok(import(&blob?).await?)
    }
}

async fn blob_of(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let len = stream.read_u32_le().await?;
    if len > 1024 {
        return Err(
            format!("the peer offers a blob of {len} bytes, and none has more than 1024").into(),
        );
    }
    let mut blob = vec![0; len as usize];
    stream.read_exact(&mut blob).await?;
    Ok(blob)
}

/// Connects to the peer at a TCP address, or listens there. The connecting side waits for the
/// listener.
async fn reach(address: &str, listens: bool) -> Result<TcpStream> {
    if listens {
        let listener = TcpListener::bind(address).await?;
        say(format_args!("Listening on {}", listener.local_addr()?))?;
        return Ok(listener.accept().await?.0);
    }
    loop {
        match TcpStream::connect(address).await {
            Err(error) if error.kind() == Io::ConnectionRefused => sleep(AGAIN).await,
            reached => return Ok(reached?),
        }
    }
}

/// Waits until there is a file that `take` accepts. Ignores the file of an earlier run, whose
/// process is gone: the peer will replace that file.
async fn wait_for<T>(
    path: &Path,
    limit: Duration,
    take: impl AsyncFn(&[u8]) -> Result<T, Error>,
) -> Result<T> {
    let name = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let (end, mut seen, mut refused) = (Instant::now() + limit, None, None);
    loop {
        match read(path) {
            Ok(blob) if seen.as_ref() != Some(&blob) => {
                match take(&blob).await {
                    Ok(taken) => return Ok(taken),
                    Err(error) if is_left_over(&error) => refused = Some(error),
                    Err(error) => return Err(name(&error).into()),
                }
                seen = Some(blob);
            }
            Ok(_) => {}
            Err(error) if error.kind() == Io::NotFound => {}
            Err(error) => return Err(name(&error).into()),
        }
        if Instant::now() >= end {
            let text = match refused {
                Some(error) => name(&error),
                None => name(&format_args!("no peer has written it within {limit:?}")),
            };
            return Err(text.into());
        }
        sleep(AGAIN).await;
    }
}

fn is_left_over(error: &Error) -> bool {
    let gone = [
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
        ErrorKind::NotPermitted,
    ];
    gone.contains(&error.kind())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Reading another type of file could block the thread.
    match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Files that are removed at the end.
struct Files(Vec<PathBuf>);

impl Files {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        let name = |error: io::Error| format!("{}: {error}", path.display());
        // Writes to a temporary file first, so that no reader finds an incomplete file.
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let _ = std::fs::remove_file(&part);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)
            .map_err(name)?;
        file.write_all(bytes).map_err(name)?;
        std::fs::rename(&part, path).map_err(name)?;
        self.0.push(path.to_owned());
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
