//! One side of a connection that is to be made: the connector dials and introduces itself, the
//! listener contacts nobody and waits for that (ADR 0043).

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::wakers::Wakers;
use super::wire::Offer;
use crate::error::{Error, Result};

/// One side of a connection that is to be made.
pub(super) struct Side {
    pub(super) core: Box<Core>,
    pub(super) wakers: Arc<Wakers>,
    pub(super) blob: Vec<u8>,
    /// The longest frame that it takes.
    pub(super) frame: u32,
}

impl Side {
    /// Returns the connector's offer, which gives no credits: its first frame does.
    pub(super) fn hello<'a>(&'a self, data: &'a [u8]) -> Offer<'a> {
        Offer {
            frame: self.frame,
            credits: 0,
            flags: 0,
            blob: &self.blob,
            data,
        }
    }

    /// Returns the listener's offer.
    pub(super) fn welcome<'a>(&'a mut self, data: &'a [u8]) -> Offer<'a> {
        Offer {
            credits: self.core.first_credits(),
            ..self.hello(data)
        }
    }

    /// Connects to the listener, and introduces this side to it.
    pub(super) async fn dial(
        &mut self,
        op: &'static str,
        offer: Offer<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let dial = self.core.rdma().dial(offer.blob).timeout(timeout);
        dial.await.map_err(|error| error.with_call(op))?;
        self.begin(op, offer)?;
        let introduced = poll_fn(|cx| self.core.poll_introduce(cx)).await;
        introduced.map_err(|error| Error::from(error).with_call(op))
    }

    /// Takes the connector as the peer, and contacts nobody.
    pub(super) async fn listen(&mut self, op: &'static str, offer: Offer<'_>) -> Result<()> {
        let listen = self.core.rdma().listen(offer.blob);
        listen.await.map_err(|error| error.with_call(op))?;
        // Its first frame gives credits, and nothing that comes before it.
        let offer = Offer {
            credits: 0,
            ..offer
        };
        self.begin(op, offer)
    }

    /// Waits for the connector's first frame: a stranger can say on the socket that it is
    /// connected, and cannot send one.
    pub(super) async fn introduction(&mut self, op: &'static str) -> Result<()> {
        let came = poll_fn(|cx| self.core.poll_introduction(cx)).await;
        came.map_err(|error| Error::from(error).with_call(op))
    }

    fn begin(&mut self, op: &'static str, offer: Offer<'_>) -> Result<()> {
        let begun = self.core.begin(offer.frame as usize, offer.credits);
        begun.map_err(|error| Error::from(error).with_call(op))
    }
}
