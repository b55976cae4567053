//! A peer that has asked by rdma_cm.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::{GRANT, Incoming, Way, gave_up};
use crate::channel::Peer;
use crate::device::Path;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::CmRequest;
use crate::stream::drain::Guest;
use crate::stream::side::{Met, Net};
use crate::stream::stream::{Link, RdmaStream};
use crate::stream::wire::{Offer, cut};

/// The most bytes of a reason.
const REASON_MAX: usize = 148;

pub(super) struct Asked {
    /// `None` once it was answered.
    request: Option<CmRequest>,
    /// What it says, as it came, which was parsed before.
    hello: Vec<u8>,
    runtime: Handle,
    /// The path over which its frames are waited for.
    pub(super) path: Option<Path>,
}

/// Takes a request, unless its peer is no connector of streams: it is refused then.
pub(in crate::stream) fn asked(
    request: CmRequest,
    net: &Arc<Net>,
    runtime: Handle,
) -> std::result::Result<Incoming, (Peer, Error)> {
    let peer = Peer::at(Some(request.peer_addr()));
    let wrong = match Offer::parse_by_cm(request.private_data()) {
        _ if request.is_foreign() => "it is no RdmaConnector".to_owned(),
        Ok(_) => {
            let way = Way::Cm(Asked {
                hello: request.private_data().to_vec(),
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

/// Refuses, with as much of a reason as fits.
fn reject(request: CmRequest, reason: &str) {
    // It is refused all the same if the adapter has gone.
    _ = request.reject(cut(reason, REASON_MAX).as_bytes());
}

impl Asked {
    fn theirs(&self) -> Offer<'_> {
        match Offer::parse_by_cm(&self.hello) {
            Ok(offer) => offer,
            Err(_) => unreachable!("it was parsed before"),
        }
    }

    /// Returns what the peer tells the application.
    pub(super) fn data(&self) -> &[u8] {
        self.theirs().data
    }

    pub(super) fn waits(&self) -> bool {
        self.request.is_some()
    }

    /// Refuses the peer if it still waits. Returns whether it did.
    pub(super) fn refuse(&mut self, reason: &str) -> bool {
        let request = self.request.take();
        request.map(|request| reject(request, reason)).is_some()
    }

    pub(super) async fn grant(
        &mut self,
        net: &Net,
        guest: Guest,
        data: &[u8],
    ) -> Result<RdmaStream> {
        // Its receives are posted now: the peer sends as soon as it is accepted.
        let mut side = net.side(GRANT, None).await?;
        let Some(request) = self.request.take() else {
            unreachable!("it was not answered before");
        };
        let peer = Peer::at(Some(request.peer_addr()));
        let accept = request.accept(side.core.rdma());
        let accept = accept.private_data(&net.cm_offer(data));
        let accepted = accept.timeout(net.options.timeout).await;
        accepted.map_err(|error| gave_up(error.with_call(GRANT)))?;
        side.begin(GRANT, self.theirs())?;
        self.path = side.path();
        side.pass(GRANT).await.map_err(gave_up)?;
        self.path = None;
        let met = Met {
            peer,
            local: None,
            runtime: self.runtime.clone(),
        };
        let link = Link::over_rdma(side.core, &side.wakers, &self.runtime);
        let linger = net.options.linger;
        Ok(RdmaStream::new(link, side.wakers, met, linger, Some(guest)))
    }
}
