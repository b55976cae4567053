//! The RDMA stream, with the traits that axum, hyper and tonic need.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_doca::channel::Peer;
use tokio_doca::stream::RdmaStream;

/// Implements `AsyncRead` and `AsyncWrite` for a tuple struct by delegation to its only field.
macro_rules! delegate_io {
    ($type:ty) => {
        impl AsyncRead for $type {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<Result<()>> {
                Pin::new(&mut self.0).poll_read(cx, buf)
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<Result<usize>> {
                Pin::new(&mut self.0).poll_write(cx, bytes)
            }

            // Without the vectored calls, hyper would send a head and its body as two messages.
            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<Result<usize>> {
                Pin::new(&mut self.0).poll_write_vectored(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.0.is_write_vectored()
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                Pin::new(&mut self.0).poll_flush(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                Pin::new(&mut self.0).poll_shutdown(cx)
            }
        }
    };
}

#[cfg(all(feature = "rustls", any(feature = "hyper", feature = "tonic")))]
pub(crate) use delegate_io;

/// An [`RdmaStream`] for axum, hyper and tonic.
///
/// The wrapper reads and writes as the inner stream does, and implements two more traits:
///
/// - hyper-util's `Connection` (feature `hyper` or `tonic`), which puts the [`Peer`] into the
///   extensions of each response;
/// - tonic's `Connected` (feature `tonic`), which puts the [`Peer`] into the extensions of each
///   request.
///
/// [`Listener`](crate::Listener) and `Connector` make streams. To run one connection by hand, wrap
/// an [`RdmaStream`]:
///
/// ```no_run
/// # use tokio_doca::stream::RdmaConnector;
/// use hyper_util::rt::TokioIo;
/// use tokio_doca_http::Stream;
///
/// # async fn connect(
/// #     connector: RdmaConnector,
/// #     addr: std::net::SocketAddr,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = Stream::from(connector.connect(addr).await?);
/// println!("connected to {}", stream.peer());
/// let stream = TokioIo::new(stream);
/// let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
/// tokio::spawn(connection);
/// # let request = hyper::Request::new(String::new());
/// let response = sender.send_request(request).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Stream(RdmaStream);

impl Stream {
    /// Returns the peer: its address if the connection was set up by TCP, or its process and user
    /// if it was set up by a Unix socket.
    pub fn peer(&self) -> &Peer {
        self.0.peer()
    }

    /// Returns a reference to the inner stream.
    pub fn get_ref(&self) -> &RdmaStream {
        &self.0
    }

    /// Returns a mutable reference to the inner stream.
    pub fn get_mut(&mut self) -> &mut RdmaStream {
        &mut self.0
    }

    /// Unwraps the inner stream.
    pub fn into_inner(self) -> RdmaStream {
        self.0
    }
}

impl From<RdmaStream> for Stream {
    fn from(stream: RdmaStream) -> Stream {
        Stream(stream)
    }
}

delegate_io!(Stream);

#[cfg(any(feature = "hyper", feature = "tonic"))]
impl hyper_util::client::legacy::connect::Connection for Stream {
    fn connected(&self) -> hyper_util::client::legacy::connect::Connected {
        let connected = hyper_util::client::legacy::connect::Connected::new();
        connected.extra(self.peer().clone())
    }
}

#[cfg(feature = "tonic")]
impl tonic::transport::server::Connected for Stream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer().clone()
    }
}
