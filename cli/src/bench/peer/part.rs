//! The server's part in the operations of a client.

use std::io;
use std::net::SocketAddr;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_doca::stream::RdmaStream;
use tokio_doca::{Buf, Device, Mmap, Rdma, WorkQ};

use super::Asked;
use crate::bench::load::memory::{filled, lent, pool, touched};
use crate::bench::load::pair::context;
use crate::bench::load::{Failed, Kind, Result, rdma_send, stream};
use crate::failure::reason;
use crate::transfer::{ANSWER, Nonce, nonce};

pub(super) enum Part {
    /// Echoes the bytes of the stream.
    Stream { size: usize },
    /// Echoes the bytes of the TCP connection that begins with the nonce.
    Tcp {
        listener: TcpListener,
        nonce: Nonce,
        size: usize,
    },
    /// Lends memory, which the client reads and writes by RDMA.
    Memory { rdma: Rdma, _lent: Mmap },
    /// Answers messages.
    Messages {
        rdma: Rdma,
        answer: Buf,
        bufs: Vec<Buf>,
    },
}

impl Part {
    /// Makes the part that the client asks for. Also returns what goes into the answer: the blob of
    /// the lent memory, or the port and the nonce of TCP.
    pub(super) async fn of(
        device: &Device,
        asked: Asked,
        mut addr: SocketAddr,
    ) -> Result<(Part, Vec<u8>)> {
        let (size, depth) = (asked.size as usize, asked.depth as usize);
        if asked.tcp {
            addr.set_port(0);
            let listener = TcpListener::bind(addr).await?;
            let port = listener.local_addr()?.port();
            let nonce = nonce().map_err(Failed::Said)?;
            let answer = [&port.to_be_bytes()[..], &nonce].concat();
            let part = Part::Tcp {
                listener,
                nonce,
                size,
            };
            return Ok((part, answer));
        }
        if asked.kind == Kind::Stream {
            return Ok((Part::Stream { size }, Vec::new()));
        }
        let workq = WorkQ::builder().depth(2 * asked.depth).build()?;
        let rdma = context(device, &workq, depth)?;
        if asked.kind != Kind::RdmaSend {
            let mmap = lent(device, size, depth)?;
            let blob = mmap.export_rdma(device)?;
            return Ok((Part::Memory { rdma, _lent: mmap }, blob));
        }
        let pool = pool(device, size, depth + 1)?;
        let bufs = (0..depth).map(|_| touched(&pool));
        let part = Part::Messages {
            rdma,
            answer: filled(&pool, size)?,
            bufs: bufs.collect::<Result<_>>()?,
        };
        Ok((part, Vec::new()))
    }

    /// Plays this part until the client ends the stream.
    pub(super) async fn play(self, stream: &mut RdmaStream) -> Result<(), String> {
        match self {
            Part::Stream { size } => stream::echo(stream, size).await,
            Part::Tcp {
                listener,
                nonce,
                size,
            } => {
                let accepted = tokio::select! {
                    accepted = timeout(ANSWER, connection(&listener, &nonce)) => accepted,
                    () = ended(stream) => return Ok(()),
                };
                drop(listener);
                let late = |_| format!("no TCP connection came within {} s", ANSWER.as_secs());
                let tcp = accepted.map_err(late)?.map_err(|error| reason(&error))?;
                tokio::select! {
                    () = stream::echo(tcp, size) => {}
                    () = ended(stream) => {}
                }
            }
            Part::Memory { rdma, _lent } => {
                accept(&rdma, stream).await?;
                // The client reads and writes the memory meanwhile.
                ended(stream).await;
            }
            Part::Messages { rdma, answer, bufs } => {
                accept(&rdma, stream).await?;
                tokio::select! {
                    // The echo ends, with an error, once the connection has ended.
                    _ = rdma_send::echo(&rdma, &answer, &bufs) => {}
                    () = ended(stream) => {}
                }
            }
        }
        Ok(())
    }
}

/// The most TCP connections that may wait to send their nonce, strangers' included.
const SILENT: usize = 4;

/// Accepts the connection that begins with the nonce. Strangers may connect as well, and are
/// ignored.
async fn connection(listener: &TcpListener, nonce: &Nonce) -> io::Result<TcpStream> {
    let mut begun = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut stream, _) = match accepted {
                    // The client has gone already.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                    accepted => accepted?,
                };
                // The oldest connections stay: a stranger cannot push them out.
                if begun.len() < SILENT {
                    begun.push(async move {
                        let mut said = Nonce::default();
                        stream.set_nodelay(true).ok()?;
                        stream.read_exact(&mut said).await.ok()?;
                        (said == *nonce).then_some(stream)
                    });
                }
            }
            Some(said) = begun.next(), if !begun.is_empty() => {
                if let Some(stream) = said {
                    return Ok(stream);
                }
            }
        }
    }
}

/// Accepts the RDMA connection of the client, which may be hostile.
async fn accept(rdma: &Rdma, stream: &mut RdmaStream) -> Result<(), String> {
    let accepted = timeout(ANSWER, rdma.handshake_accept(stream)).await;
    let late = |_| format!("it did not connect within {} s", ANSWER.as_secs());
    accepted
        .map_err(late)?
        .map_err(|error| crate::failure::text(&error))
}

/// Waits until the client ends the stream, or breaks the protocol by sending a byte.
async fn ended(stream: &mut RdmaStream) {
    let _ = stream.read(&mut [0]).await;
}
