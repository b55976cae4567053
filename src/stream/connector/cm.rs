//! A stream by rdma_cm, which says what the exchange says otherwise: there is no socket. The first
//! frames pass as after an exchange.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::warn;

use super::{in_time, pass_within};
use crate::channel::Peer;
use crate::device::CmRefused;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::side::{CONNECT, Met, Net, refused};
use crate::stream::stream::{Link, RdmaStream};
use crate::stream::wire::{Offer, Wrong};
use crate::sync::log;

/// Connects, or returns `None` if there is no way by rdma_cm and TCP will do.
pub(super) async fn connect(
    net: &Net,
    addr: SocketAddr,
    data: &[u8],
    runtime: &Handle,
) -> Option<Result<(RdmaStream, Vec<u8>)>> {
    let timeout = net.options.timeout;
    // So that it leaves time for TCP.
    let limit = if net.may_tcp() { timeout / 2 } else { timeout };
    match in_time(CONNECT, limit, dial(net, addr, data, runtime, limit)).await {
        Err(error) if net.may_tcp() && net.is_of_rdma(&error) && is_no_answer(&error) => {
            let text = "no connection by rdma_cm: TCP from now on";
            log(|| warn!(target: "tokio_doca::stream", peer = %addr, %error, "{text}"));
            None
        }
        connected => Some(connected.map_err(|error| net.without_tcp(CONNECT, error))),
    }
}

/// Returns false for what the listener at this address has decided, which it would say by TCP too.
fn is_no_answer(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::NotPermitted | ErrorKind::UnsupportedVersion
    )
}

async fn dial(
    net: &Net,
    addr: SocketAddr,
    data: &[u8],
    runtime: &Handle,
    limit: Duration,
) -> Result<(RdmaStream, Vec<u8>)> {
    let begun = Instant::now();
    let left = || (limit * 15 / 16).saturating_sub(begun.elapsed());
    let mut side = net.side(CONNECT, None).await?;
    let dial = side.core.rdma().connect_to(addr);
    let dial = dial.private_data(&net.cm_offer(data)).timeout(left());
    let answer = dial.await.map_err(of_listener)?;
    let offer = Offer::parse_by_cm(&answer).map_err(|wrong| {
        let kind = match wrong {
            Wrong::Version(_) => ErrorKind::UnsupportedVersion,
            Wrong::Nonsense => ErrorKind::ConnectionAborted,
        };
        Error::new(kind, CONNECT, format!("{addr}: {wrong}"))
    })?;
    side.begin(CONNECT, offer)?;
    match side.path() {
        Some(path) => pass_within(&mut side, path, left()).await?,
        None => side.pass(CONNECT).await?,
    }
    let met = Met {
        peer: Peer::at(Some(addr)),
        local: None,
        runtime: runtime.clone(),
    };
    let link = Link::over_rdma(side.core, &side.wakers, runtime);
    let stream = RdmaStream::new(link, side.wakers, met, net.options.linger, None);
    Ok((stream, offer.data.to_vec()))
}

/// What the listener says is said as in an exchange.
fn of_listener(error: Error) -> Error {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    let said = source.and_then(|source| source.get_ref()?.downcast_ref::<CmRefused>());
    let kind = match said {
        Some(CmRefused(said)) if !said.is_empty() => {
            refused(std::str::from_utf8(said).unwrap_or_default())
        }
        _ => return error.with_call(CONNECT),
    };
    Error::new(kind, CONNECT, error.message().to_owned())
}
