//! A tonic gRPC server and client over RDMA: a unary call, a stream of answers, and a stream in
//! each direction.
//!
//! ```text
//! $ cargo run --bin grpc_over_rdma                    # both, which checks what comes
//! $ cargo run --bin grpc_over_rdma serve 127.0.0.1:8000
//! $ cargo run --bin grpc_over_rdma say http://127.0.0.1:8000 hello
//! ```
//!
//! The server disconnects a client that is silent for 10 s, also between two calls. The client
//! reconnects for the next call.

use std::net::SocketAddr;
use std::process::ExitCode;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use services::grpc::{Echo, EchoClient};
use services::idle::Idle;
use services::{Result, listen, open, options, uri};
use tokio_doca_http::{Connector, Listener};
use tonic::transport::{Endpoint, Server};

#[tokio::main]
async fn main() -> ExitCode {
    services::run(program).await
}

async fn program(args: &[&str]) -> Result {
    match *args {
        [] => {
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
            let mut client = connect(&uri(&listener)).await?;
            tokio::spawn(serve(listener));
            call(&mut client).await
        }
        ["serve", addr] => {
            let listener = listen(addr.parse()?).await?;
            println!("Listening on {}", uri(&listener));
            serve(listener).await
        }
        ["say", uri, text] => {
            let said = connect(uri).await?.say(text.to_owned().into()).await?;
            println!("{}", String::from_utf8_lossy(&said));
            Ok(())
        }
        _ => Err("usage: grpc_over_rdma [serve ADDR | say URI TEXT]".into()),
    }
}

async fn serve(listener: Listener) -> Result {
    let incoming = listener.into_incoming().map_ok(Idle::new);
    Ok(Server::builder()
        .serve_with_incoming(Echo, incoming)
        .await?)
}

/// Makes a client, which connects when it makes its first call.
async fn connect(uri: &str) -> Result<EchoClient> {
    let (device, workq) = open()?;
    let connector = Connector::new(options().connections(8).connector(&device, &workq)?);
    let endpoint = Endpoint::from_shared(uri.to_owned())?;
    Ok(EchoClient::new(
        endpoint.connect_with_connector_lazy(connector),
    ))
}

async fn call(client: &mut EchoClient) -> Result {
    let said = client.say(Bytes::from("hello")).await?;
    println!("Say: {}", String::from_utf8_lossy(&said));

    let answers = client.repeat(Bytes::from("again")).await?;
    let answers: Vec<Bytes> = answers.take(100).try_collect().await?;
    println!("Repeat: {} times {:?}", answers.len(), answers[0]);

    let numbers = || (0..100_u32).map(|number| Bytes::from(number.to_string()));
    let answers = client.chat(stream::iter(numbers())).await?;
    let answers: Vec<Bytes> = answers.try_collect().await?;
    println!("Chat: {} answers", answers.len());

    match said == "hello" && answers.into_iter().eq(numbers()) {
        true => Ok(()),
        false => Err("something else came back than was sent".into()),
    }
}
