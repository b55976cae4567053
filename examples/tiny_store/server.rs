//! The protocol between clients and the store, on a stream.
//!
//! ```text
//! request | b'R', block: u32             | answer | 0, the data
//!         | b'W', block: u32, the data   |        | 0
//!                                        |        | 1, length: u16, why not
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_doca::stream::{Incoming, RdmaListener, RdmaStream};

use crate::mirror::Mirror;
use crate::store::{BLOCK, Result};

/// How long a client may take to send the rest of a request and to receive the answer.
const LIMIT: Duration = Duration::from_secs(30);
/// How long clients may take to end after the server has stopped accepting.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves clients until `stop` completes, and then until the clients have ended. A client that
/// sends no request for the time `idle` is disconnected.
pub(crate) async fn serve(
    listener: RdmaListener,
    store: Arc<Mirror>,
    idle: Duration,
    stop: impl Future,
) -> Result<()> {
    let mut stop = pin!(stop);
    loop {
        let incoming = tokio::select! {
            incoming = listener.accept() => incoming?,
            _ = &mut stop => break,
        };
        let store = Arc::clone(&store);
        // Each client has its own task, so that a slow or failing client delays no other.
        tokio::spawn(async move {
            if let Err(error) = client(incoming, &store, idle).await {
                eprintln!("a client: {error}");
            }
        });
    }
    match listener.drain(DRAIN).await {
        0 => Ok(()),
        left => Err(format!("{left} clients did not end in time").into()),
    }
}

async fn client(incoming: Incoming, store: &Mirror, idle: Duration) -> Result<()> {
    let mut stream = incoming.accept(b"").await?;
    let mut draining = pin!(stream.draining());
    let mut verb = [0];
    loop {
        let read = tokio::select! {
            read = timeout(idle, stream.read(&mut verb)) => {
                read.map_err(|_| "no request in time")??
            }
            () = &mut draining => 0,
        };
        if read == 0 {
            return Ok(stream.shutdown().await?);
        }
        timeout(LIMIT, answer(&mut stream, store, verb)).await??;
    }
}

/// Reads the rest of a request, and answers it.
async fn answer(stream: &mut RdmaStream, store: &Mirror, verb: [u8; 1]) -> Result<()> {
    let block = stream.read_u32().await? as usize;
    match verb {
        [b'R'] => match store.read(block).await {
            Ok(data) => {
                stream.write_u8(0).await?;
                Ok(stream.write_all(&data.data()?).await?)
            }
            Err(error) => refuse(stream, &error.to_string()).await,
        },
        [b'W'] => {
            let data = store.store.buf().await;
            data.set_data(0, BLOCK)?; // all of it is data: `data_mut` lends that
            stream.read_exact(&mut data.data_mut()?).await?; // into the device's memory
            match store.write(block, &data).await {
                Ok(()) => Ok(stream.write_u8(0).await?),
                Err(error) => refuse(stream, &error.to_string()).await,
            }
        }
        [verb] => Err(format!("{verb} is no request").into()),
    }
}

async fn refuse(stream: &mut RdmaStream, why: &str) -> Result<()> {
    stream.write_u8(1).await?;
    stream.write_u16(why.len() as u16).await?;
    Ok(stream.write_all(why.as_bytes()).await?)
}
