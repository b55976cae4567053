//! A gRPC echo service and its client. The code is what `protoc` would generate, but written by
//! hand, with messages of raw bytes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http::uri::PathAndQuery;
use hyper::http;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// A codec that passes messages on as raw bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

const SAY: &str = "/services.Echo/Say";
const REPEAT: &str = "/services.Echo/Repeat";
const CHAT: &str = "/services.Echo/Chat";

/// The echo server: `Say` returns its message, `Repeat` sends its message until the client stops
/// reading, and `Chat` returns each message of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Echo;

type Answers = BoxStream<'static, Result<Bytes, Status>>;

async fn say(request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
    Ok(Response::new(request.into_inner()))
}

async fn repeat(request: Request<Bytes>) -> Result<Response<Answers>, Status> {
    let message = request.into_inner();
    let answers = futures::stream::repeat_with(move || Ok(message.clone()));
    Ok(Response::new(answers.boxed()))
}

async fn chat(request: Request<Streaming<Bytes>>) -> Result<Response<Answers>, Status> {
    Ok(Response::new(request.into_inner().boxed()))
}

impl tower::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        use tower::service_fn;
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Raw);
            Ok(match request.uri().path() {
                SAY => grpc.unary(service_fn(say), request).await,
                REPEAT => grpc.server_streaming(service_fn(repeat), request).await,
                CHAT => grpc.streaming(service_fn(chat), request).await,
                other => Status::unimplemented(other).into_http(),
            })
        })
    }
}

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "services.Echo";
}

/// The client. Clones share their connection.
#[derive(Clone, Debug)]
pub struct EchoClient(Grpc<Channel>);

impl EchoClient {
    /// Makes a client of the service at the other end of `channel`.
    pub fn new(channel: Channel) -> EchoClient {
        EchoClient(Grpc::new(channel))
    }

    /// Sends a message, and returns the server's answer.
    ///
    /// # Errors
    ///
    /// Fails with the status that the server returns; `Unavailable` or `Unknown` if the connection
    /// ends.
    pub async fn say(&mut self, message: Bytes) -> Result<Bytes, Status> {
        let said = PathAndQuery::from_static(SAY);
        let answer = self.ready().await?.unary(Request::new(message), said, Raw);
        Ok(answer.await?.into_inner())
    }

    /// Returns a stream in which the server repeats the message.
    ///
    /// # Errors
    ///
    /// Fails as [`EchoClient::say`] does.
    pub async fn repeat(&mut self, message: Bytes) -> Result<Streaming<Bytes>, Status> {
        let path = PathAndQuery::from_static(REPEAT);
        let grpc = self.ready().await?;
        let answers = grpc.server_streaming(Request::new(message), path, Raw);
        Ok(answers.await?.into_inner())
    }

    /// Sends a stream of messages, and returns the stream of their echoes.
    ///
    /// # Errors
    ///
    /// Fails as [`EchoClient::say`] does.
    pub async fn chat(
        &mut self,
        messages: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, Status> {
        let path = PathAndQuery::from_static(CHAT);
        let grpc = self.ready().await?;
        let answers = grpc.streaming(Request::new(messages), path, Raw);
        Ok(answers.await?.into_inner())
    }

    async fn ready(&mut self) -> Result<&mut Grpc<Channel>, Status> {
        let ready = self.0.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(&mut self.0)
    }
}
