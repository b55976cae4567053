//! Implements axum's `serve::Listener` and `Connected` for the listeners of this crate.

use std::io;
use std::path::PathBuf;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, TapIo};
use tokio_doca::channel::Peer;
use tokio_doca::stream::StreamAddr;

use crate::{Listener, Stream};

/// The [`Peer`] of a connection, for axum's `ConnectInfo`.
///
/// If the listener is bound to a TCP address, the peer has an address. On a Unix socket, the peer
/// has a user and a process, which the listener learns from the kernel.
///
/// ```no_run
/// use axum::{Router, extract::ConnectInfo, routing::get};
/// use tokio_doca_http::{Listener, RemotePeer};
///
/// async fn greet(ConnectInfo(RemotePeer(peer)): ConnectInfo<RemotePeer>) -> String {
///     match peer.user_id() {
///         Some(user) => format!("hello, user {user}\n"),
///         None => format!("hello, {peer}\n"),
///     }
/// }
///
/// async fn serve(listener: Listener) -> std::io::Result<()> {
///     let app = Router::new().route("/", get(greet));
///     let app = app.into_make_service_with_connect_info::<RemotePeer>();
///     axum::serve(listener, app).await
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemotePeer(pub Peer);

/// Returns the peer's TCP address. For a peer on a Unix socket, returns an empty path.
fn remote_addr(stream: &Stream) -> StreamAddr {
    match stream.peer().tcp_addr() {
        Some(addr) => StreamAddr::Tcp(addr),
        None => StreamAddr::Unix(PathBuf::new()),
    }
}

/// Accepts streams for axum. If the listening socket has failed, `accept` writes a `tracing` event
/// and retries every second, as axum does for TCP. The address of a peer on a Unix socket is an
/// empty path.
impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = StreamAddr;

    async fn accept(&mut self) -> (Stream, StreamAddr) {
        let stream = self.next().await;
        let addr = remote_addr(&stream);
        (stream, addr)
    }

    fn local_addr(&self) -> io::Result<StreamAddr> {
        Ok(Listener::local_addr(self).clone())
    }
}

impl Connected<IncomingStream<'_, Listener>> for RemotePeer {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> RemotePeer {
        RemotePeer(stream.io().peer().clone())
    }
}

impl<F> Connected<IncomingStream<'_, TapIo<Listener, F>>> for RemotePeer
where
    F: FnMut(&mut Stream) + Send + 'static,
{
    fn connect_info(stream: IncomingStream<'_, TapIo<Listener, F>>) -> RemotePeer {
        RemotePeer(stream.io().peer().clone())
    }
}

#[cfg(feature = "rustls")]
mod tls {
    use tokio_rustls::server::TlsStream;

    use super::*;
    use crate::TlsListener;

    /// Accepts streams for axum, with the behavior of [`Listener`]'s implementation.
    impl axum::serve::Listener for TlsListener {
        type Io = TlsStream<Stream>;
        type Addr = StreamAddr;

        async fn accept(&mut self) -> (TlsStream<Stream>, StreamAddr) {
            let stream = self.next().await;
            let addr = remote_addr(stream.get_ref().0);
            (stream, addr)
        }

        fn local_addr(&self) -> io::Result<StreamAddr> {
            Ok(TlsListener::local_addr(self).clone())
        }
    }

    impl Connected<IncomingStream<'_, TlsListener>> for RemotePeer {
        fn connect_info(stream: IncomingStream<'_, TlsListener>) -> RemotePeer {
            RemotePeer(stream.io().get_ref().0.peer().clone())
        }
    }

    impl<F> Connected<IncomingStream<'_, TapIo<TlsListener, F>>> for RemotePeer
    where
        F: FnMut(&mut TlsStream<Stream>) + Send + 'static,
    {
        fn connect_info(stream: IncomingStream<'_, TapIo<TlsListener, F>>) -> RemotePeer {
            RemotePeer(stream.io().get_ref().0.peer().clone())
        }
    }
}
