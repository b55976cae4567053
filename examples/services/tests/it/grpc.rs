//! Tests of tonic's server and client.

use std::io::ErrorKind;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::{StreamExt, TryStreamExt, stream};
use services::grpc::{Echo, EchoClient};
use services::http::bytes;
use services::options;
use support::{in_time, workers};
use tokio::sync::{Barrier, mpsc};
use tonic::Code;
use tonic::transport::{Endpoint, Server};

use super::programs;
use super::{Net, cause};

async fn serving() -> Net {
    let (net, listener) = Net::new(options()).await;
    let incoming = listener.into_incoming();
    tokio::spawn(Server::builder().serve_with_incoming(Echo, incoming));
    net
}

impl Net {
    async fn echo(&self) -> EchoClient {
        let endpoint = Endpoint::from_shared(self.uri()).unwrap();
        let channel = endpoint.connect_with_connector(self.service());
        EchoClient::new(in_time("the channel", channel).await.unwrap())
    }
}

#[test]
fn calls_are_answered_on_one_connection_and_on_sixty_four_at_once() {
    workers().block_on(async {
        let net = serving().await;
        let client = net.echo().await;
        let say = async |number: u64| {
            let message = bytes(number..number + 64);
            assert_eq!(client.clone().say(message.clone()).await.unwrap(), message);
        };
        in_time("the answers", join_all((0..200).map(say))).await;
        let connected = Arc::new(Barrier::new(64));
        let clients = (0..64).map(async |number| {
            let mut client = net.echo().await;
            connected.wait().await;
            let message = bytes(number..number + 1000);
            assert_eq!(client.say(message.clone()).await.unwrap(), message);
        });
        in_time("the clients", join_all(clients)).await;
    });
}

#[test]
fn messages_of_a_mebibyte_go_both_ways() {
    workers().block_on(async {
        let client = serving().await.echo().await;
        let message = bytes(0..1 << 20);
        let say = async || client.clone().say(message.clone()).await;
        let answers = in_time("the answers", try_join_all((0..8).map(|_| say()))).await;
        assert!(answers.unwrap().iter().all(|answer| *answer == message));
    });
}

#[test]
fn a_stream_of_answers_comes_in_full_and_may_be_left() {
    workers().block_on(async {
        let mut client = serving().await.echo().await;
        for _ in 0..10 {
            let message = bytes(0..10_000);
            let answers = client.repeat(message.clone()).await.unwrap();
            // Reads ten megabytes, and then drops the stream.
            let mut answers = answers.take(1000);
            while let Some(answer) = in_time("an answer", answers.next()).await {
                assert!(answer.unwrap() == message);
            }
        }
        assert_eq!(
            client.say(Bytes::from("still there")).await.unwrap(),
            "still there"
        );
    });
}

#[test]
fn a_stream_each_way_answers_each_message_before_the_next_one() {
    workers().block_on(async {
        let mut client = serving().await.echo().await;
        let (messages, sent) = mpsc::unbounded_channel();
        let sent = stream::unfold(sent, |mut sent| async { Some((sent.recv().await?, sent)) });
        messages.send(Bytes::from("first")).unwrap();
        let mut answers = client.chat(sent).await.unwrap();
        let mut expected = Bytes::from("first");
        for number in 0..100 {
            let answer = in_time("an answer", answers.try_next()).await;
            assert_eq!(answer.unwrap(), Some(expected));
            expected = bytes(number..number + 100 * number);
            messages.send(expected.clone()).unwrap();
        }
        drop(messages);
        let last = in_time("the last one", answers.try_next()).await;
        assert_eq!(last.unwrap(), Some(expected));
        assert_eq!(in_time("the end", answers.try_next()).await.unwrap(), None);
    });
}

#[test]
fn a_server_that_is_killed_ends_its_streams_and_calls() {
    workers().block_on(async {
        let server = programs::Server::start("grpc_over_rdma", &["serve", "127.0.0.1:0"]);
        let (mut net, _) = Net::new(options()).await;
        net.addr = server.addr();
        let mut client = net.echo().await;
        let mut answers = client.repeat(bytes(0..1000)).await.unwrap();
        assert!(answers.try_next().await.unwrap().is_some());
        server.kill();
        let error = loop {
            match in_time("the end", answers.try_next()).await {
                Ok(answer) => assert!(answer.is_some(), "an end in order"),
                Err(error) => break error,
            }
        };
        assert_eq!(cause(&error), Some(ErrorKind::ConnectionReset), "{error:?}");
        // The first calls may still fail because the connection ends.
        let refused = async {
            while client.say(Bytes::new()).await.unwrap_err().code() != Code::Unavailable {}
        };
        in_time("nobody listens there", refused).await;
    });
}
