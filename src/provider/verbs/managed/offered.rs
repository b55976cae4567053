//! Connections that peers request from a listener, by rdma_cm.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::super::adapter::Context;
use super::super::adapter::greeting::{self, Greeting};
use super::super::cm::{Cm, CmEvent, CmId, Handler, What, is_of, step};
use super::super::connection::EventTargets;
use super::attempt::check_private_data;
use super::managed::Managed;
use crate::device::contract::CmArrivals;
use crate::device::{CmListening, CmOffer};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{contain, lock, log};

/// A listener at an address. It ends when its id is dropped.
pub(in super::super) struct Listener {
    addr: SocketAddr,
    _arrivals: Arc<Arrivals>,
}

/// The handler of a listener's requests.
struct Arrivals {
    context: Arc<Context>,
    tell: CmArrivals,
    /// `None` once the adapter was removed.
    id: Mutex<Option<CmId>>,
}

impl Listener {
    pub(in super::super) fn listen(
        context: &Arc<Context>,
        watched: &EventTargets,
        addr: SocketAddr,
        backlog: u32,
        tell: CmArrivals,
    ) -> Result<Listener> {
        let id = CmId::create(Cm::get(context)?, false)?;
        let arrivals = Arc::new(Arrivals {
            context: Arc::clone(context),
            tell,
            id: Mutex::default(),
        });
        let handler: Arc<dyn Handler> = Arc::clone(&arrivals) as _;
        id.set_handler(Arc::downgrade(&handler));
        watched.add_listener(&handler);
        id.bind(addr).map_err(|error| not_bound(error, addr))?;
        if let Some(found) = id.device(context)
            && !is_of(context, &found)
        {
            let (name, port) = found;
            let text = format!(
                "{addr} is an address of port {port} of {name}, and this device is {}",
                context.name
            );
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        // The lock is held until the id is stored, so that a removal of the adapter finds the id.
        let mut place = lock(&arrivals.id);
        id.listen(backlog).map_err(|error| not_bound(error, addr))?;
        let addr = id.local_addr().unwrap_or(addr);
        *place = Some(id);
        drop(place);
        Ok(Listener {
            addr,
            _arrivals: arrivals,
        })
    }
}

/// Returns why a listener cannot use an address.
fn not_bound(error: Error, addr: SocketAddr) -> Error {
    let (kind, text) = match error.errno() {
        Some(libc::EADDRINUSE) => (
            ErrorKind::AlreadyExist,
            format!("another listener has {addr} by rdma_cm, or over iWARP by TCP"),
        ),
        Some(libc::ENODEV) => (
            ErrorKind::NotSupported,
            format!("no adapter has the address {addr}"),
        ),
        _ => return error,
    };
    Error::new(kind, None, text)
}

impl CmListening for Listener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Handler for Arrivals {
    fn handle(self: Arc<Self>, event: CmEvent) {
        if event.what != What::DeviceRemoved {
            return;
        }
        drop(lock(&self.id).take());
        let text = format!("{} was removed", self.context.name);
        let gone = Error::new(ErrorKind::Driver, None, text);
        contain("a waker", || (self.tell)(Err(gone)));
    }

    fn offer(&self, id: CmId, event: CmEvent) {
        let refused = |why: String| {
            let (device, peer) = (&self.context.name, id.peer_addr());
            log(|| {
                let text = "a request by rdma_cm is refused";
                tracing::debug!(target: "tokio_doca::verbs", device, ?peer, why, "{text}");
            });
        };
        if id
            .device(&self.context)
            .is_none_or(|found| !is_of(&self.context, &found))
        {
            return refused("it came to another adapter".to_owned());
        }
        let (greeting, said) = match Greeting::parse(&event.private_data) {
            Ok(Some((greeting, said))) => (Some(greeting), said.to_vec()),
            Ok(None) => (None, event.private_data),
            Err(error) => return refused(error.to_string()),
        };
        let Some(peer) = id.peer_addr() else {
            return refused("it has no address".to_owned());
        };
        let offered = Offered {
            context: Arc::clone(&self.context),
            peer,
            said,
            greeting,
            reads: event.reads,
            managed: Managed::offered(id),
        };
        contain("a waker", || (self.tell)(Ok(Box::new(offered))));
    }
}

/// A connection that a peer requests. Dropping it refuses the request.
pub(in super::super) struct Offered {
    context: Arc<Context>,
    peer: SocketAddr,
    said: Vec<u8>,
    /// Set for a peer that has this library.
    greeting: Option<Greeting>,
    reads: [u8; 2],
    managed: Arc<Managed>,
}

impl Offered {
    /// Returns an error if the request came to another device.
    pub(in super::super) fn check(&self, context: &Arc<Context>) -> Result<()> {
        if Arc::ptr_eq(&self.context, context) {
            return Ok(());
        }
        let text = format!(
            "the peer asks for a connection to {}, and this Rdma is on {}",
            self.context.name, context.name
        );
        Err(Error::new(ErrorKind::InvalidValue, None, text))
    }

    pub(super) fn into_parts(self) -> (Arc<Managed>, Option<Greeting>, [u8; 2]) {
        (self.managed, self.greeting, self.reads)
    }
}

impl CmOffer for Offered {
    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn private_data(&self) -> &[u8] {
        &self.said
    }

    fn is_foreign(&self) -> bool {
        self.greeting.is_none()
    }

    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, greeting::REJECT, true)?;
        // If the peer has given up meanwhile, there is no request to refuse.
        let Ok(id) = self.managed.take_offer() else {
            return Ok(());
        };
        let said = private_data.to_vec();
        let reject = move || {
            if let Err(error) = id.reject(&said) {
                log(|| tracing::debug!(target: "tokio_doca::verbs", %error, "rejects"));
            }
        };
        // If no thread can be started, the drop of the id refuses the request, and the peer does
        // not learn the reason.
        let _ = step(reject);
        Ok(())
    }
}
