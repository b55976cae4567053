//! The route of a connection's packets: the source address, and the options of the application.

use super::super::adapter::{EndpointBlob, Gid, Wish};
use super::super::transport::{Retry, Route};
use super::rc::{RcConnection, RcInner};
use crate::device::Transport;
use crate::error::Result;

impl RcConnection {
    /// Returns the address of this side. It is chosen when the endpoint is exported or the peer is
    /// known, and stays the same until the next reset.
    pub(super) fn choose_gid(
        &self,
        inner: &mut RcInner,
        peer: Option<&EndpointBlob>,
    ) -> Result<Gid> {
        let context = &self.core.context;
        let transport = &self.config.transport;
        let gid = match (inner.gid, transport.gid, self.config.gid_index) {
            (Some(gid), ..) => context.same_gid(gid)?,
            (_, Some(addr), _) => context.gid_of(addr)?,
            (.., Some(index)) => context.gid_at(index)?,
            _ => context.best_gid(&Wish {
                peer: peer.map(|peer| peer.address.gid.into()),
                source: transport.source,
            })?,
        };
        inner.gid = Some(gid);
        Ok(gid)
    }

    pub(in super::super) fn retry(&self) -> Retry {
        Retry::within(self.config.rnr_timeout, &self.config.transport)
    }

    /// Returns the transport options, with the values that the adapter accepted.
    pub(in super::super) fn transport(&self) -> Transport {
        let inner = self.inner();
        let qp = inner.qp.as_ref();
        Transport {
            ack_timeout: Some(self.retry().timeout()),
            inline_size: qp.map_or(self.config.transport.inline_size, |qp| qp.max_inline()),
            ..self.config.transport
        }
    }

    /// Returns the route to a peer.
    pub(super) fn route(&self, inner: &RcInner, gid: Gid, peer: &EndpointBlob) -> Result<Route> {
        let context = &self.core.context;
        let (traits, port) = (&context.traits, context.port()?);
        let mtu = self.config.mtu.min(port.mtu);
        Ok(Route {
            peer: peer.address,
            psn: inner.psn,
            gid_index: gid.index,
            mtu: peer.address.mtu.map_or(mtu, |theirs| theirs.min(mtu)),
            needs_grh: port.needs_grh,
            rd_atomics: [traits.rd_atomics[0], traits.rd_atomics[1].min(peer.answers)],
            retry: self.retry(),
            transport: self.config.transport,
            resolved: None,
        })
    }
}
