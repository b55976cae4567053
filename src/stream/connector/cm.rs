//! Connects a stream by rdma_cm. The private data of rdma_cm's messages carries what a socket's
//! exchange carries, and the first frames pass as after a socket's exchange.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::warn;

use super::{in_time, pass_within};
use crate::device::CmRefused;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::exchange::Fail;
use crate::stream::side::{CONNECT, Net, refused};
use crate::stream::stream::RdmaStream;
use crate::stream::wire::{CANNOT_CONNECT, NO_RDMA, Wrong, parse_cm_offer, parse_cm_refusal};
use crate::sync::log;

/// Connects, or returns `None` if rdma_cm cannot connect and TCP is allowed.
pub(super) async fn connect(
    net: &Net,
    addr: SocketAddr,
    data: &[u8],
    runtime: &Handle,
) -> Result<Option<(RdmaStream, Vec<u8>)>> {
    let timeout = net.options.timeout;
    // Half of the time is left for TCP.
    let limit = if net.may_tcp() { timeout / 2 } else { timeout };
    let at = net.cm_addr(CONNECT, addr)?;
    let dial = dial(net, at, data, runtime, limit);
    let error = match in_time(CONNECT, limit, dial).await {
        Ok(connected) => return Ok(Some(connected)),
        Err(error) => error,
    };
    if !net.may_tcp() || !net.is_of_rdma(&error) || is_decided(&error) {
        return Err(net.without_tcp(CONNECT, of_listener(error)));
    }
    let text = "no connection by rdma_cm: asks by TCP instead";
    log(|| warn!(target: "tokio_doca::stream", peer = %addr, %error, "{text}"));
    Ok(None)
}

async fn dial(
    net: &Net,
    at: SocketAddr,
    data: &[u8],
    runtime: &Handle,
    limit: Duration,
) -> Result<(RdmaStream, Vec<u8>)> {
    let begun = Instant::now();
    // This ends before `in_time` does, so that the error gives the reason.
    let left = || (limit * 15 / 16).saturating_sub(begun.elapsed());
    let mut side = net.side(CONNECT, None).await?;
    let dial = side.core.rdma().connect_to(at);
    let answer = dial
        .private_data(&net.cm_offer(data))
        .timeout(left())
        .await?;
    let (frame, said) = parse_cm_offer(&answer).map_err(|wrong| {
        let kind = match wrong {
            Wrong::Version(_) => ErrorKind::UnsupportedVersion,
            Wrong::Nonsense => ErrorKind::ConnectionAborted,
        };
        Error::new(kind, CONNECT, format!("{at}: {wrong}"))
    })?;
    side.begin(CONNECT, frame, 0)?;
    match side.path() {
        Some(path) => pass_within(&mut side, path, left()).await?,
        None => side.pass(CONNECT).await?,
    }
    let stream = RdmaStream::by_cm(side, at, runtime, net.options.linger, None);
    Ok((stream, said.to_vec()))
}

/// Returns what the listener's application said, if this error is a refusal.
fn refusal(error: &Error) -> Option<&[u8]> {
    let CmRefused(said) = error.system()?.get_ref()?.downcast_ref()?;
    Some(said)
}

/// Returns true if this error is a decision of a listener of streams, which would decide the same
/// over TCP.
fn is_decided(error: &Error) -> bool {
    let reason = refusal(error).map(parse_cm_refusal);
    match reason {
        Some(Ok(reason)) => ![NO_RDMA, CANNOT_CONNECT].contains(&reason),
        Some(Err(Wrong::Version(_))) => true,
        _ => error.kind() == ErrorKind::UnsupportedVersion,
    }
}

/// Gives a listener's refusal the kind and the text that it has in an exchange over a socket.
fn of_listener(error: Error) -> Error {
    let (kind, text) = match refusal(&error).map(parse_cm_refusal) {
        Some(Ok("")) => (
            ErrorKind::ConnectionAborted,
            "the listener has dropped its Incoming".to_owned(),
        ),
        Some(Ok(reason)) => (refused(reason), Fail::Refused(reason).to_string()),
        Some(Err(wrong @ Wrong::Version(_))) => (ErrorKind::UnsupportedVersion, wrong.to_string()),
        _ if error.kind() == ErrorKind::InvalidValue => {
            let text =
                "the other side is no RdmaListener: name the address of one (StreamAddr::Cm)";
            (ErrorKind::InvalidValue, text.to_owned())
        }
        _ => return error.with_call(CONNECT),
    };
    Error::new(kind, CONNECT, text)
}
