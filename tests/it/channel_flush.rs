//! Messages that a Channel has accepted and the socket has not: the tasks that write them, and how
//! a program waits for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::thread;

use support::channel::*;
use support::*;
use tokio::sync::oneshot;
use tokio_doca::{ErrorKind, channel::Channel};

type Disconnect = Pin<Box<dyn Future<Output = ()> + Send>>;

const MESSAGE: [u8; 4080] = [7; 4080];

fn queue(messages: usize) -> tokio_doca::channel::ChannelBuilder {
    Channel::builder().send_queue_size(messages)
}

/// Sends until both the queue and the socket are full. Returns the number of messages sent.
fn fill(channel: &Channel) -> usize {
    let mut sent = 0;
    loop {
        match channel.try_send(&MESSAGE) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Again, "{error}");
                return sent;
            }
        }
    }
}

/// The waker of a disconnect runs after the writing task has finished its work, and before that
/// task is dropped. Here the waker drops the disconnect, and sends enough messages for a new
/// writing task to start.
#[test]
fn a_task_that_is_done_does_not_end_the_connection_under_the_next_one() {
    run(async {
        let (client, server) = pair_of(queue(256), Channel::builder()).await;
        let mut sent = fill(&client);
        let waits: Arc<Mutex<Option<Disconnect>>> = Arc::default();
        let again = Arc::new(AtomicUsize::new(0));
        let waker = {
            let (client, waits, again) = (client.clone(), Arc::clone(&waits), Arc::clone(&again));
            Call::waker(move || {
                drop(waits.lock().unwrap().take());
                again.store(fill(&client), Ordering::SeqCst);
            })
        };
        let mut disconnect: Disconnect = {
            let client = client.clone();
            Box::pin(async move { client.disconnect().await })
        };
        let polled = disconnect.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        *waits.lock().unwrap() = Some(disconnect);
        let read = async |messages: usize| {
            for _ in 0..messages {
                let message = in_time("a message", server.recv()).await;
                assert_eq!(message.expect("nobody has ended it"), MESSAGE[..]);
            }
        };
        read(sent).await;
        until("the next messages were sent", || {
            again.load(Ordering::SeqCst) > 0
        })
        .await;
        read(again.load(Ordering::SeqCst)).await;
        sent += again.load(Ordering::SeqCst);
        assert!(sent > 256, "a task was needed for the rest: {sent}");
        assert!(client.is_connected());
    });
}

#[test]
fn a_flush_waits_until_the_socket_has_taken_all_that_was_sent() {
    run(async {
        let (client, server) = pair_of(queue(64), Channel::builder()).await;
        client.flush().await.unwrap();
        let sent = fill(&client);
        let mut flush = Box::pin(client.flush());
        poll_pending(flush.as_mut());
        assert_eq!(client.try_send(b"").unwrap_err().kind(), ErrorKind::Again);
        // A flush that is dropped delays no other flush.
        poll_pending(Box::pin(client.flush()).as_mut());
        let read = async {
            for _ in 0..sent {
                server.recv().await.unwrap();
            }
        };
        in_time("the flush", async { tokio::join!(flush, read).0 })
            .await
            .unwrap();
        assert_eq!(client.stats().sends_in_flight, 0);
        client.send(b"more").await.unwrap();
        assert_eq!(server.recv().await.unwrap(), "more");
    });
}

#[test]
fn a_flush_fails_with_its_connection() {
    run(async {
        let (client, server) = pair_of(queue(64), Channel::builder()).await;
        fill(&client);
        let mut flush = Box::pin(client.flush());
        poll_pending(flush.as_mut());
        drop(server);
        let error = in_time("the flush", flush).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(error.call(), Some("Channel::flush"));
        client.abort();
        assert_eq!(
            client.flush().await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
    });
}

/// The sender's runtime ends as soon as the flush is done: messages that the server has not read by
/// then arrive all the same.
#[test]
fn messages_that_were_flushed_arrive_after_the_runtime_of_the_sender_has_ended() {
    run(async {
        let name = unique("flush");
        let service = service(Channel::builder(), &name);
        let (half, start) = oneshot::channel();
        let thread = thread::spawn(move || {
            run(async {
                let pf0 = function("pf0");
                let client = queue(64).connect(&pf0, &name).await.unwrap();
                let sent = fill(&client);
                half.send(sent).unwrap();
                client.flush().await.unwrap();
                sent
            })
        });
        let server = service.accept().await.unwrap();
        // Reads enough for the remaining messages to fit into the socket.
        let sent = start.await.unwrap();
        let mut received = 0;
        while !thread.is_finished() && received < sent {
            server.recv().await.unwrap();
            received += 1;
            tokio::task::yield_now().await;
        }
        assert_eq!(thread.join().unwrap(), sent);
        while received < sent {
            in_time("a message", server.recv()).await.unwrap();
            received += 1;
        }
        let end = in_time("the end", server.recv()).await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    });
}
