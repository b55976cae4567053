//! How the packets of a connection travel: from which address, and with what the application asked
//! for.

use std::net::Ipv6Addr;

use super::super::adapter::{EndpointBlob, bytes};
use super::super::transport::{Retry, Route};
use super::rc::{RcConnection, RcInner};
use crate::device::Transport;
use crate::error::{Error, ErrorKind, Result};

impl RcConnection {
    /// The address that peers reach it by: index and address. The same until the port's addresses
    /// change.
    pub(super) fn gid(&self) -> Result<(u32, [u8; 16])> {
        let context = &self.core.context;
        let name = &context.name;
        if let Some(gid) = self.config.transport.gid.map(|gid| gid.octets()) {
            return context.farthest(|it| *it == gid).ok_or_else(|| {
                let gid = Ipv6Addr::from(gid);
                let text = format!("the port of {name} does not have the address {gid}");
                Error::new(ErrorKind::NotFound, None, text)
            });
        }
        match self.config.gid_index {
            None => context.best_gid(),
            Some(index) => match context.gid(index).map(|entry| bytes(&entry)) {
                Ok(gid) if gid != [0; 16] => Ok((index, gid)),
                _ => {
                    let text = format!("the port of {name} has no address at GID index {index}");
                    Err(Error::new(ErrorKind::NotFound, None, text))
                }
            },
        }
    }

    pub(super) fn retry(&self) -> Retry {
        Retry::within(self.config.rnr_timeout, &self.config.transport)
    }

    /// How packets travel, with what the adapter took.
    pub(in super::super) fn transport(&self) -> Transport {
        let inner = self.inner();
        let qp = inner.qp.as_ref();
        Transport {
            ack_timeout: Some(self.retry().timeout()),
            inline_size: qp.map_or(self.config.transport.inline_size, |qp| qp.max_inline()),
            ..self.config.transport
        }
    }

    /// The way to a peer.
    pub(super) fn route(&self, inner: &RcInner, peer: &EndpointBlob) -> Result<Route> {
        let context = &self.core.context;
        let (traits, port) = (&context.traits, context.port()?);
        let mtu = self.config.mtu.min(port.mtu);
        Ok(Route {
            peer: peer.address,
            psn: inner.psn,
            gid_index: inner.gid.0,
            mtu: peer.address.mtu.map_or(mtu, |theirs| theirs.min(mtu)),
            needs_grh: port.needs_grh,
            rd_atomics: [traits.rd_atomics[0], traits.rd_atomics[1].min(peer.answers)],
            retry: self.retry(),
            transport: self.config.transport,
        })
    }
}
