//! A stream with the traits of tonic and hyper-util, which are not ours to implement for
//! `RdmaStream`.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_doca::channel::Peer;
use tokio_doca::stream::RdmaStream;

/// An [`RdmaStream`] for hyper, axum and tonic.
#[derive(Debug)]
pub struct RdmaIo(pub RdmaStream);

impl RdmaIo {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut RdmaStream> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl AsyncRead for RdmaIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.stream().poll_read(cx, into)
    }
}

impl AsyncWrite for RdmaIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    // Without these two, hyper would send a head and its body as two messages.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.stream().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

/// hyper-util's client asks whether it speaks with a proxy, and whether TLS has agreed on HTTP/2.
impl Connection for RdmaIo {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// A service of tonic's finds the peer among the extensions of a request.
impl tonic::transport::server::Connected for RdmaIo {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.0.peer().clone()
    }
}
