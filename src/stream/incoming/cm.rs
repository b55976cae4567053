//! A peer that has asked for a stream by rdma_cm.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::{GRANT, Incoming, Way, gave_up};
use crate::channel::Peer;
use crate::device::Path;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::CmRequest;
use crate::stream::drain::Guest;
use crate::stream::side::Net;
use crate::stream::stream::RdmaStream;
use crate::stream::wire::{cm_refusal, parse_cm_offer};

pub(super) struct Asked {
    /// `None` once the request is being accepted, or was refused.
    request: Option<CmRequest>,
    /// True once the peer is connected, or was refused.
    answered: bool,
    /// The length of the longest frame that the peer takes, and its data for the application.
    frame: u32,
    data: Vec<u8>,
    runtime: Handle,
    /// The path over which the peer's frames must come.
    pub(super) path: Option<Path>,
}

/// Takes a request. A peer that is no connector of streams is refused.
pub(in crate::stream) fn asked(
    request: CmRequest,
    net: &Arc<Net>,
    runtime: Handle,
) -> std::result::Result<Incoming, (Peer, Error)> {
    let peer = Peer::at(Some(request.peer_addr()));
    let wrong = match parse_cm_offer(request.private_data()) {
        _ if request.is_foreign() => "it is no RdmaConnector".to_owned(),
        Ok((frame, data)) => {
            let way = Way::Cm(Asked {
                answered: false,
                frame,
                data: data.to_vec(),
                request: Some(request),
                runtime,
                path: None,
            });
            let net = Arc::clone(net);
            return Ok(Incoming { way, peer, net });
        }
        Err(wrong) => wrong.to_string(),
    };
    let error = Error::new(ErrorKind::ConnectionAborted, GRANT, wrong);
    reject(request, error.message());
    Err((peer, error))
}

fn reject(request: CmRequest, reason: &str) {
    // If the reject fails because the adapter has gone, that ends the request as well.
    _ = request.reject(&cm_refusal(reason));
}

impl Asked {
    /// Returns the peer's data for the application.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn waits(&self) -> bool {
        !self.answered
    }

    /// Refuses the peer. Returns false if it was answered before.
    pub(super) fn refuse(&mut self, reason: &str) -> bool {
        if let Some(request) = self.request.take() {
            reject(request, reason);
        }
        !std::mem::replace(&mut self.answered, true)
    }

    pub(super) async fn grant(
        &mut self,
        net: &Net,
        guest: Guest,
        data: &[u8],
    ) -> Result<RdmaStream> {
        let begun = Instant::now();
        // The receives are posted before the accept, since the peer sends as soon as it is
        // accepted.
        let mut side = net.side(GRANT, None).await?;
        let Some(request) = self.request.take() else {
            unreachable!("it was not answered before");
        };
        let peer = request.peer_addr();
        // The accept gets a little less time than the call, so that it ends first and gives the
        // reason.
        let left = net.options.timeout.saturating_sub(begun.elapsed()) * 15 / 16;
        let accept = request.accept(side.core.rdma()).timeout(left);
        let accepted = accept.private_data(&net.cm_offer(data)).await;
        accepted.map_err(|error| gave_up(error.with_call(GRANT)))?;
        side.begin(GRANT, self.frame, 0)?;
        self.path = side.path();
        side.pass(GRANT).await.map_err(gave_up)?;
        (self.path, self.answered) = (None, true);
        let linger = net.options.linger;
        let stream = RdmaStream::by_cm(side, peer, &self.runtime, linger, Some(guest));
        Ok(stream)
    }
}
