//! Many connections that receive into one pool.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{join, join_all};
use futures::{FutureExt, SinkExt, StreamExt};
use support::device::{assert_told, needs_soft, told_of};
use support::rdma::{Setup, Side, connect, context, failed};
use support::*;
use tokio_doca::{
    Buf, BufPool, Device, ErrorKind, Mmap, Mode, Rdma, WorkQ,
    error::{JobError, Reason},
    mem::Access,
    rdma::{RdmaState, RecvOpcode, RecvPool, RecvStream, Transport},
};

const ROOM: usize = 8192;

/// Returns the device under test. On an adapter the connections of a WorkQ share their receives, so
/// that a peer with more messages than credits need not wait; tests of such peers need the software
/// device.
fn device() -> Device {
    support::device::under_test(false)
}

fn bufs(device: &Device, count: usize) -> BufPool {
    let mmap = Mmap::builder().device(device).alloc(count * ROOM).unwrap();
    BufPool::builder(&mmap).element_size(ROOM).build().unwrap()
}

/// The server's side of connections to clients, all of which are on the clients' WorkQ.
struct Server {
    pool: RecvPool,
    workq: WorkQ,
    rdmas: Vec<Rdma>,
    client: Side,
    clients: Vec<Rdma>,
}

impl Server {
    fn new(setup: Setup, connections: usize, pool: impl FnOnce(&Device) -> RecvPool) -> Server {
        let device = device();
        let workq = || WorkQ::builder().depth(64).mode(setup.mode).build().unwrap();
        let (pool, server, clients) = (pool(&device), workq(), workq());
        let client = Side::on(&device, &clients, setup);
        let mut pairs = Vec::new();
        for _ in 0..connections {
            let builder = Rdma::builder(&device).recv_pool(&pool);
            // Writes with immediates need this permission: an adapter checks it even if no bytes
            // are written.
            let builder = builder.permissions(Access::RDMA_WRITE);
            let rdma = builder.attach(&server).unwrap();
            let peer = context(&device, &clients, setup);
            connect(&rdma, &peer);
            pairs.push((rdma, peer));
        }
        let (rdmas, clients) = pairs.into_iter().unzip();
        let workq = server;
        Server {
            pool,
            workq,
            rdmas,
            client,
            clients,
        }
    }

    async fn send(&self, client: usize, bytes: &[u8]) -> Result<usize, JobError> {
        self.clients[client].send(self.client.filled(bytes)).await
    }

    fn is_full(&self) -> bool {
        free_bufs(self.pool.bufs()) == self.pool.bufs().elements()
    }
}

/// Returns a server with a pool of `count` Bufs, and defaults otherwise.
fn server(mode: Mode, connections: usize, count: usize) -> Server {
    Server::new(Setup::new(false, mode), connections, |device| {
        RecvPool::new(&bufs(device, count))
    })
}

fn all_modes() -> [Mode; 3] {
    let spin = Duration::from_micros(50);
    [Mode::EventDriven, Mode::BusyPoll, Mode::Hybrid { spin }]
}

async fn next(stream: &mut RecvStream) -> Vec<u8> {
    let message = in_time("a message", stream.next()).await.unwrap().unwrap();
    let bytes = message.buf.as_ref().map_or_else(Vec::new, bytes);
    assert_eq!(message.received.len, bytes.len());
    bytes
}

/// Returns the error with which a stream ends.
async fn end(stream: &mut RecvStream) -> JobError {
    let last = in_time("the end", stream.next()).await;
    last.unwrap().unwrap_err()
}

#[test]
fn messages_of_each_connection_arrive_in_order_with_few_bufs() {
    for mode in all_modes() {
        run(async {
            let server = server(mode, 8, 3);
            let sent = |client: usize, number: usize| {
                let len = [1, 60, 113, 4000][number % 4];
                pattern((16 * client + number) as u8, len)
            };
            let send = join_all((0..8).map(|client| {
                let server = &server;
                async move {
                    for number in 0..40 {
                        let done = server.send(client, &sent(client, number)).await;
                        done.unwrap();
                    }
                }
            }));
            let receive = join_all(server.rdmas.iter().enumerate().map(
                |(client, rdma)| async move {
                    let mut stream = rdma.messages();
                    for number in 0..40 {
                        assert_eq!(
                            next(&mut stream).await,
                            sent(client, number),
                            "{client}, {number}"
                        );
                    }
                },
            ));
            in_time("all messages", join(send, receive)).await;
            assert!(server.is_full(), "an idle connection has no Buf");
        });
    }
}

#[test]
fn each_kind_of_message_is_told_as_it_came() {
    run(async {
        let server = server(Mode::EventDriven, 1, 2);
        let (peer, mut stream) = (&server.clients[0], server.rdmas[0].messages());
        peer.send(()).await.unwrap();
        peer.send_imm(server.client.filled(b"seven"), 7)
            .await
            .unwrap();
        peer.write_imm((), (), 8).await.unwrap();
        for (opcode, immediate, data) in [
            (RecvOpcode::Send, None, None),
            (RecvOpcode::SendImm, Some(7), Some(b"seven".to_vec())),
            (RecvOpcode::WriteImm, Some(8), None),
        ] {
            let message = in_time("a message", stream.next()).await.unwrap().unwrap();
            let received = message.received;
            assert_eq!((received.opcode, received.immediate), (opcode, immediate));
            assert_eq!(message.buf.as_ref().map(bytes), data);
        }
        // Sending on this connection does not use the pool.
        let buf = server.client.empty();
        let (sent, received) = join(server.rdmas[0].send(()), peer.recv(&buf)).await;
        assert_eq!((sent, received.unwrap().len), (Ok(0), 0));
    });
}

#[test]
fn a_peer_without_credits_waits_and_stops_no_other() {
    if needs_soft("a peer without credits takes the receives of others") {
        return;
    }
    let setup = Setup::new(false, Mode::EventDriven).rnr(Duration::from_millis(50));
    run(async {
        let server = Server::new(setup, 2, |device| {
            RecvPool::new(&bufs(device, 2)).credits(3)
        });
        assert_eq!(server.rdmas[0].recv_queue_size(), 4, "rounded up");
        for number in 0..4 {
            server.send(0, &[number; 200]).await.unwrap();
        }
        // The fifth message has no receive, since the stream of its connection is not polled.
        let fifth = server.send(0, &[4]).await;
        assert_eq!(failed(fifth).0, Reason::NoReceive);
        let mut other = server.rdmas[1].messages();
        for number in 0..20 {
            server.send(1, &[number]).await.unwrap();
            assert_eq!(next(&mut other).await, [number]);
        }
        // The messages for which the peer had credits have arrived all the same.
        let mut stream = server.rdmas[0].messages();
        for number in 0..4 {
            assert_eq!(next(&mut stream).await, [number; 200]);
        }
        let error = end(&mut stream).await;
        assert_eq!(error.cause(), Some(Reason::PeerFailed));
        assert!(stream.next().await.is_none());
    });
}

#[test]
fn a_credit_that_is_lent_anew_lets_the_peer_go_on() {
    for mode in all_modes() {
        run(async {
            let pool = |device: &Device| RecvPool::new(&bufs(device, 1)).credits(1);
            let server = Server::new(Setup::new(false, mode), 1, pool);
            let send = async {
                for number in 0..100_u8 {
                    server
                        .send(0, &vec![number; 40 * usize::from(number)])
                        .await
                        .unwrap();
                }
            };
            let receive = async {
                let mut stream = server.rdmas[0].messages();
                for number in 0..100_u8 {
                    assert_eq!(
                        next(&mut stream).await,
                        vec![number; 40 * usize::from(number)]
                    );
                }
            };
            in_time("all messages", join(send, receive)).await;
        });
    }
}

#[test]
fn a_stream_that_finds_the_pool_empty_waits_its_turn_and_for_the_end_of_its_connection() {
    for mode in all_modes() {
        run(async {
            let mut server = server(mode, 3, 1);
            for client in 0..3 {
                server.send(client, &[client as u8]).await.unwrap();
            }
            let mut streams: Vec<_> = server.rdmas.iter().map(Rdma::messages).collect();
            let first = in_time("a message", streams[0].next())
                .await
                .unwrap()
                .unwrap();
            // The other streams wait for the Buf.
            assert!(streams[1].next().now_or_never().is_none());
            assert!(streams[2].next().now_or_never().is_none());
            drop(first);
            assert_eq!(next(&mut streams[1]).await, [1]);
            assert_eq!(next(&mut streams[2]).await, [2]);

            // The peer of one stream leaves while there is neither a message nor a Buf for this
            // stream.
            let taken = server.pool.bufs().try_alloc().unwrap();
            let mut last = streams.pop().unwrap();
            let ended = tokio::spawn(async move { last.next().await });
            tokio::task::yield_now().await;
            drop(server.clients.pop());
            let error = in_time("the end", ended)
                .await
                .unwrap()
                .unwrap()
                .unwrap_err();
            let told = told_of(Reason::PeerClosed).map(Some);
            assert!(told.contains(&error.cause()), "{error}");
            drop(taken);
        });
    }
}

#[test]
fn messages_of_a_peer_that_has_left_are_taken_first() {
    for mode in all_modes() {
        run(async {
            let mut server = server(mode, 1, 2);
            for number in 0..5 {
                server.send(0, &[number; 300]).await.unwrap();
            }
            server.clients.clear();
            assert_eq!(server.rdmas[0].state(), RdmaState::Connected);
            let mut stream = server.rdmas[0].messages();
            for number in 0..5 {
                assert_eq!(next(&mut stream).await, [number; 300]);
            }
            let error = end(&mut stream).await;
            let told = told_of(Reason::PeerClosed).map(Some);
            assert!(told.contains(&error.cause()), "{error}");
            assert!(matches!(server.rdmas[0].state(), RdmaState::Error(_)));
        });
    }
}

#[test]
fn a_job_of_an_rdma_whose_peer_has_left_waits_without_looking_again_and_again() {
    run(async {
        let mut server = server(Mode::EventDriven, 1, 2);
        server.send(0, &[1]).await.unwrap();
        server.clients.clear();
        let probe = server.rdmas[0].write((), ()).owned();
        let probe = tokio::spawn(probe);
        tokio::task::yield_now().await;
        let turns = || server.workq.stats().polls;
        let before = turns();
        // A task that polls again and again would take as many turns as this thread.
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        assert!(turns() - before < 50, "{}", turns() - before);
        assert_eq!(next(&mut server.rdmas[0].messages()).await, [1]);
        let ended = in_time("the job", probe).await.unwrap();
        assert_told(ended.unwrap_err(), Reason::PeerClosed);
    });
}

/// Messages for the idle streams have arrived, and a Buf is returned while another one stays out.
#[test]
fn streams_that_nobody_polls_hold_up_no_other() {
    for idle in [1, 2, 5] {
        run(async {
            let server = server(Mode::EventDriven, idle + 1, 2);
            let bufs = server.pool.bufs();
            let (buf, _kept) = (bufs.try_alloc().unwrap(), bufs.try_alloc().unwrap());
            for client in 0..=idle {
                server.send(client, b"come").await.unwrap();
            }
            let mut streams: Vec<_> = server.rdmas.iter().map(Rdma::messages).collect();
            let mut last = streams.pop().unwrap();
            // On an adapter messages arrive a moment later.
            until("all messages have come", || {
                let mut polled = streams.iter_mut().map(|it| it.next().now_or_never());
                assert!(polled.all(|message| message.is_none()));
                bufs.stats().waiting == idle
            })
            .await;
            let message = tokio::spawn(async move { next(&mut last).await });
            tokio::task::yield_now().await;
            drop(buf);
            assert_eq!(in_time("the last", message).await.unwrap(), b"come");
        });
    }
}

#[test]
fn a_stream_ends_with_a_reset_and_with_a_shutdown_and_the_next_goes_on() {
    for mode in all_modes() {
        run(async {
            let server = server(mode, 1, 2);
            let (rdma, peer) = (&server.rdmas[0], &server.clients[0]);
            server.send(0, &[1]).await.unwrap();
            let mut stream = rdma.messages();
            assert_eq!(next(&mut stream).await, [1]);
            assert!(stream.next().now_or_never().is_none());
            server.send(0, &[2]).await.unwrap();
            rdma.reset().unwrap();
            let error = end(&mut stream).await;
            assert_eq!(error.cause(), Some(Reason::Reset), "{mode:?}");
            peer.reset().unwrap();
            connect(rdma, peer);
            server.send(0, &[3]).await.unwrap();
            let mut stream = rdma.messages();
            assert_eq!(
                next(&mut stream).await,
                [3],
                "the message before is dropped"
            );
            assert!(stream.next().now_or_never().is_none());
            in_time("the shutdown", server.workq.shutdown())
                .await
                .unwrap();
            let error = end(&mut stream).await;
            assert_eq!(error.reason(), Reason::Shutdown);
        });
    }
}

#[test]
fn a_dropped_stream_loses_nothing() {
    run(async {
        let server = server(Mode::EventDriven, 1, 2);
        for number in 0..50_u8 {
            let mut stream = server.rdmas[0].messages();
            // Drops the stream while it waits.
            assert!(stream.next().now_or_never().is_none());
            drop(stream);
            server.send(0, &[number]).await.unwrap();
            assert_eq!(next(&mut server.rdmas[0].messages()).await, [number]);
        }
        assert!(server.is_full());
    });
}

#[test]
fn two_streams_of_a_connection_share_its_messages() {
    for mode in all_modes() {
        run(async {
            let server = server(mode, 1, 4);
            let taken = Arc::new(std::sync::Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..2)
                .map(|_| {
                    let (mut stream, taken) = (server.rdmas[0].messages(), Arc::clone(&taken));
                    tokio::spawn(async move {
                        loop {
                            let number = next(&mut stream).await[0];
                            if number == u8::MAX {
                                return;
                            }
                            taken.lock().unwrap().push(number);
                        }
                    })
                })
                .collect();
            for number in 0..100 {
                server.send(0, &[number]).await.unwrap();
                tokio::task::yield_now().await;
            }
            for _ in 0..2 {
                server.send(0, &[u8::MAX]).await.unwrap();
            }
            in_time("both", join_all(tasks)).await;
            let mut all = taken.lock().unwrap().clone();
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
        });
    }
}

#[test]
fn who_waits_before_the_connection_is_there_hears_of_the_first_message() {
    for mode in all_modes() {
        run(async {
            let device = device();
            let setup = Setup::new(false, mode);
            let workq = || WorkQ::builder().depth(32).mode(mode).build().unwrap();
            let pool = RecvPool::new(&bufs(&device, 2));
            let server = workq();
            let rdma = Rdma::builder(&device)
                .recv_pool(&pool)
                .attach(&server)
                .unwrap();
            let client = Side::on(&device, &workq(), setup);
            let mut stream = rdma.messages();
            assert!(stream.next().now_or_never().is_none());
            let waits = tokio::spawn(async move { next(&mut stream).await });
            tokio::task::yield_now().await;
            connect(&rdma, &client.rdma);
            tokio::task::yield_now().await;
            client.send(b"hello").await.unwrap();
            assert_eq!(in_time("a message", waits).await.unwrap(), b"hello");
        });
    }
}

#[test]
fn receives_are_refused_with_a_pool_and_messages_without_one() {
    run(async {
        let server = server(Mode::EventDriven, 1, 2);
        let (rdma, peer) = (&server.rdmas[0], &server.clients[0]);
        let buf = server.pool.bufs().try_alloc().unwrap();
        assert_eq!(failed(rdma.recv(&buf).await).0, Reason::ReceivesFromPool);
        let refused = failed(rdma.recv(()).start().map_err(|refused| refused.error()));
        assert_eq!(refused.0, Reason::ReceivesFromPool);
        let mut stream = rdma.recv_stream(server.pool.bufs(), 4);
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Reason::ReceivesFromPool);
        assert!(stream.next().await.is_none());
        let mut stream = peer.messages();
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Reason::NoRecvPool);
        assert!(stream.next().await.is_none());
        drop(buf);
        server.send(0, b"it works all the same").await.unwrap();
        assert_eq!(next(&mut rdma.messages()).await, b"it works all the same");
    });
}

#[test]
fn a_message_longer_than_the_elements_fails_at_the_sender() {
    run(async {
        let server = server(Mode::EventDriven, 1, 2);
        let mmap = Mmap::builder()
            .device(&server.client.device)
            .alloc(ROOM + 1)
            .unwrap();
        let large = tokio_doca::mem::BufInventory::with_capacity(1);
        let large = large.buf_filled(&mmap, ..).unwrap();
        let sent = server.clients[0].send(&large).await;
        assert_told(sent.unwrap_err(), Reason::MessageTooLong);
        let error = server.rdmas[0]
            .messages()
            .next()
            .await
            .unwrap()
            .unwrap_err();
        let told = told_of(Reason::ReceiveTooSmall);
        let cause = error.cause().unwrap_or(error.reason());
        assert!(told.contains(&cause), "{error}");
    });
}

#[test]
fn pools_that_no_device_takes_are_refused() {
    let device = device();
    let workq = WorkQ::builder().build().unwrap();
    let most = device.info().caps().rdma.as_ref().unwrap().max_pooled_len;
    let mmap = Mmap::builder().device(&device).alloc(2 * most).unwrap();
    let large = BufPool::builder(&mmap)
        .element_size(most + 1)
        .build()
        .unwrap();
    let attach = |pool: &RecvPool| Rdma::builder(&device).recv_pool(pool).attach(&workq);
    let error = attach(&RecvPool::new(&large)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains(&most.to_string()), "{error}");
    let small = bufs(&device, 1);
    let error = attach(&RecvPool::new(&small).credits(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    let error = attach(&RecvPool::new(&small).credits(1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(attach(&RecvPool::new(&small)).is_ok());
}

/// A stream that always finds a message never polls its WorkQ, and is notified of the first message
/// that it does not find.
#[test]
fn a_stream_that_keeps_up_with_its_peer_is_told_of_the_next_message() {
    for mode in all_modes() {
        for (credits, pulls) in [(1, 2), (4, 5), (16, 17), (16, 40)] {
            run(async {
                let pool = |device: &Device| RecvPool::new(&bufs(device, 2)).credits(credits);
                let server = Server::new(Setup::new(false, mode), 1, pool);
                let mut stream = server.rdmas[0].messages();
                // The stream waits and is notified, so that the reaper now polls its endpoint
                // without hints.
                let first = tokio::spawn(async move { (next(&mut stream).await, stream) });
                tokio::task::yield_now().await;
                server.send(0, b"first").await.unwrap();
                let (_, mut stream) = in_time("the first", first).await.unwrap();
                for number in 0..pulls {
                    server.send(0, &[number]).await.unwrap();
                    assert_eq!(next(&mut stream).await, [number]);
                }
                let last = tokio::spawn(async move { next(&mut stream).await });
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                server.send(0, b"last").await.unwrap();
                let last = in_time("the last", last).await.unwrap();
                assert_eq!(last, b"last", "{mode:?}, {credits} credits");
            });
        }
    }
}

/// Sender and receiver are on separate threads, at their own speeds.
#[test]
fn messages_between_threads_are_all_told() {
    const MESSAGES: u32 = 20_000;
    for (mode, credits) in [(Mode::EventDriven, 16), (Mode::EventDriven, 1)] {
        let pool = |device: &Device| RecvPool::new(&bufs(device, 2)).credits(credits);
        let server = Server::new(Setup::new(false, mode), 1, pool);
        let (server, taken) = (&server, &std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                run(async {
                    let mut stream = server.rdmas[0].messages();
                    for number in 0..MESSAGES {
                        assert_eq!(next(&mut stream).await, number.to_le_bytes());
                        taken.store(number + 1, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            });
            run(async {
                for number in 0..MESSAGES {
                    let sent = server.send(0, &number.to_le_bytes()).await;
                    let so_far = taken.load(std::sync::atomic::Ordering::Relaxed);
                    assert_eq!(sent, Ok(4), "message {number}, and {so_far} were taken");
                }
            });
        });
    }
}

#[test]
fn a_stream_does_not_outlive_its_connection() {
    for mode in all_modes() {
        run(async {
            let server = server(mode, 1, 2);
            let (rdma, peer) = (&server.rdmas[0], &server.clients[0]);
            let mut stream = rdma.messages();
            assert!(stream.next().now_or_never().is_none());
            rdma.reset().unwrap();
            peer.reset().unwrap();
            connect(rdma, peer);
            server.send(0, b"of the second").await.unwrap();
            let error = end(&mut stream).await;
            assert_eq!(error.cause(), Some(Reason::Reset), "{mode:?}");
            assert_eq!(next(&mut rdma.messages()).await, b"of the second");
        });
    }
}

#[test]
fn a_stream_takes_nothing_after_a_shutdown() {
    run(async {
        let server = server(Mode::EventDriven, 1, 2);
        for number in 0..3 {
            server.send(0, &[number]).await.unwrap();
        }
        let mut stream = server.rdmas[0].messages();
        assert_eq!(next(&mut stream).await, [0]);
        in_time("the shutdown", server.workq.shutdown())
            .await
            .unwrap();
        let error = end(&mut stream).await;
        assert_eq!(error.reason(), Reason::Shutdown);
    });
}

/// A job that probes the peer fails because the peer has left, and not because the peer has no
/// receive.
#[test]
fn a_job_that_outwaits_the_last_messages_says_that_the_peer_has_left() {
    run(async {
        let setup = Setup::new(false, Mode::EventDriven).rnr(Duration::from_millis(50));
        let mut server = Server::new(setup, 1, |device| RecvPool::new(&bufs(device, 2)));
        let device = server.client.device.clone();
        let builder = Rdma::builder(&device).recv_pool(&server.pool);
        let rdma = builder.rnr_timeout(Duration::from_millis(50));
        let rdma = rdma.attach(&server.workq).unwrap();
        let peer = context(&device, &server.client.workq, setup);
        connect(&rdma, &peer);
        server.clients[0] = peer;
        server.send(0, b"last words").await.unwrap();
        server.clients.clear();
        let ended = in_time("the job", rdma.write((), ())).await;
        assert_told(ended.unwrap_err(), Reason::PeerClosed);
    });
}

/// A sink sends a burst to a slow stream. The sink pauses by itself, and no message is lost.
#[test]
fn a_burst_meets_a_slow_stream() {
    for mode in all_modes() {
        run(async {
            let server = server(mode, 1, 1);
            let (server, client) = (&server, &server.client);
            let send = async {
                let mut sink = server.clients[0].send_sink(16);
                for number in 0..200_u8 {
                    let buf: Buf = client.pool.alloc().await;
                    buf.extend_from_slice(&[number; 1000]).unwrap();
                    sink.feed(buf).await.unwrap();
                }
                sink.flush().await.unwrap();
            };
            let receive = async {
                let mut stream = server.rdmas[0].messages();
                for number in 0..200_u8 {
                    assert_eq!(next(&mut stream).await, [number; 1000]);
                    for _ in 0..number % 5 {
                        tokio::task::yield_now().await;
                    }
                }
            };
            in_time("the burst", join(send, receive)).await;
        });
    }
}

/// Two streams share an `Rdma` whose only receive entry is taken, and both wait for a Buf: one
/// stream gets the Buf, and they do not pass it on for ever.
#[test]
fn streams_without_a_place_keep_their_turn() {
    run(async {
        let setup = Setup {
            receives: 1,
            ..Setup::new(false, Mode::EventDriven)
        };
        let (side, peer) = (Side::new(setup), Side::new(setup));
        connect(&side.rdma, &peer.rdma);
        let held = side.rdma.recv(()).owned().start();
        let held = held.map_err(|refused| refused.error()).unwrap();
        let pool = bufs(&side.device, 1);
        let buf = pool.try_alloc().unwrap();
        let mut streams: Vec<_> = (0..2).map(|_| side.rdma.recv_stream(&pool, 1)).collect();
        let wakes = [Count::new(), Count::new()];
        let mut seen = [0; 2];
        let poll = |streams: &mut Vec<RecvStream>, at: usize| {
            let waker = wakes[at].waker();
            let polled = streams[at].poll_next_unpin(&mut Context::from_waker(&waker));
            assert!(matches!(polled, Poll::Pending));
        };
        poll(&mut streams, 0);
        poll(&mut streams, 1);
        drop(buf);
        for round in 0.. {
            let woken: Vec<_> = (0..2).filter(|&at| wakes[at].wakes() > seen[at]).collect();
            seen = [wakes[0].wakes(), wakes[1].wakes()];
            if woken.is_empty() {
                break;
            }
            assert!(round < 10, "it wakes itself for ever");
            woken.into_iter().for_each(|at| poll(&mut streams, at));
        }
        assert!(pool.try_alloc().is_err(), "one of them has the Buf");
        drop((streams, held));
    });
}

/// The connections are on two WorkQs: each gets its own messages, few Bufs serve them all, and none
/// disturbs the others.
#[test]
fn a_thousand_connections_of_a_process_share_a_pool() {
    const CONNECTIONS: usize = 1000;
    let device = device();
    let workq = || {
        let builder = WorkQ::builder().depth(64).mode(Mode::EventDriven);
        builder.build().unwrap()
    };
    let (server, clients) = (workq(), workq());
    let pool = RecvPool::new(&bufs(&device, 8));
    let sent = bufs(&device, 8);
    let mut transport = Transport::default();
    if support::device::adapter().is_some() {
        // An adapter probes each peer once a second, which is too often for an emulated one.
        transport.ack_timeout = Some(Duration::from_secs(8));
    }
    let builder = || {
        let builder = Rdma::builder(&device).transport(transport);
        builder.send_queue_size(4).recv_queue_size(1)
    };
    let pairs: Vec<[Rdma; 2]> = (0..CONNECTIONS)
        .map(|_| {
            let one = builder().recv_pool(&pool).attach(&server).unwrap();
            let other = builder().attach(&clients).unwrap();
            connect(&one, &other);
            [one, other]
        })
        .collect();
    run(async {
        let sends = async {
            for round in 0..3_usize {
                for (number, [_, peer]) in pairs.iter().enumerate() {
                    let buf = sent.alloc().await;
                    buf.extend_from_slice(&(number + round).to_le_bytes())
                        .unwrap();
                    in_time("a message", peer.send(buf)).await.unwrap();
                }
            }
        };
        let receives = join_all(
            pairs
                .iter()
                .enumerate()
                .map(|(number, [rdma, _])| async move {
                    let mut stream = rdma.messages();
                    for round in 0..3 {
                        assert_eq!(next(&mut stream).await, (number + round).to_le_bytes());
                    }
                }),
        );
        join(sends, receives).await;
    });
    for [one, other] in &pairs {
        assert_eq!(
            (one.state(), other.state()),
            (RdmaState::Connected, RdmaState::Connected)
        );
    }
    assert_eq!(free_bufs(pool.bufs()), 8);
}
