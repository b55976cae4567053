//! Operations are submitted in the order in which they are first polled: messages, receives and
//! jobs of a sync event, whatever is left of the task's budget, in every mode, even if they wait
//! for a slot or an entry.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::future::{FutureExt, join_all};
use futures::stream::{FuturesUnordered, StreamExt, TryStreamExt, iter};
use support::device::{adapter, under_test};
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio::task::coop::{consume_budget, has_budget_remaining};
use tokio_doca::soft::Soft;
use tokio_doca::{
    ErrorKind, Mode, Rdma, WorkQ,
    error::JobError,
    sync_event::{Location, SyncEvent},
};

const MANY: u8 = 24;

/// Uses up the budget of this task, and what this thread has bought with it.
async fn spend() {
    let setup = Setup::new(false, Mode::BusyPoll);
    let event = event(setup, 1);
    while has_budget_remaining() {
        consume_budget().await;
    }
    while event.get().now_or_never().is_some() {}
}

fn event(setup: Setup, depth: u32) -> SyncEvent {
    let device = Soft::builder().defer(setup.defer).build().open("pf0");
    let device = device.unwrap();
    let at = Location::Cpu(&device);
    let event = SyncEvent::builder().publisher(at).subscriber(at);
    event.attach(&workq(setup, depth)).unwrap()
}

fn workq(setup: Setup, depth: u32) -> WorkQ {
    let builder = WorkQ::builder().depth(depth).mode(setup.mode);
    builder.build().unwrap()
}

/// Returns two connected sides; the first side's WorkQ has `depth` slots.
fn pair(setup: Setup, depth: u32) -> (Side, Side) {
    let device = under_test(setup.defer);
    let one = Side::on(&device, &workq(setup, depth), setup);
    let other = Side::on(&device, &workq(setup, 64), setup);
    connect(&one.rdma, &other.rdma);
    (one, other)
}

/// Returns every setup with each depth.
fn setups() -> impl Iterator<Item = (Setup, u32)> {
    let all = Setup::all().into_iter();
    all.flat_map(|setup| [1, 2, 32].map(|depth| (setup, depth)))
}

/// How a task drives several futures at once.
#[derive(Clone, Copy, Debug)]
enum How {
    Buffered,
    Unordered,
    JoinAll,
    Join,
}

const ALL: [How; 4] = [How::Buffered, How::Unordered, How::JoinAll, How::Join];

/// Returns the results of all futures, each with the index of its future, in the order that `how`
/// produces.
async fn all<F, T>(how: How, futures: Vec<F>) -> Vec<(usize, T)>
where
    F: Future<Output = Result<T, JobError>>,
{
    let numbered = futures.into_iter().enumerate();
    let futures = numbered.map(|(at, future)| async move { future.await.map(|value| (at, value)) });
    match how {
        How::Buffered => iter(futures).buffered(MANY.into()).try_collect().await,
        How::Unordered => {
            let all: FuturesUnordered<_> = futures.collect();
            all.try_collect().await
        }
        How::JoinAll => join_all(futures).await.into_iter().collect(),
        // Joins the first two futures and all the others.
        How::Join => {
            let mut futures: Vec<_> = futures.collect();
            let rest = futures.split_off(2);
            let [one, two] = futures.try_into().ok().unwrap();
            let (one, two, rest) = tokio::join!(one, two, join_all(rest));
            [one, two].into_iter().chain(rest).collect()
        }
    }
    .unwrap()
}

async fn numbers(side: &Side, count: usize) -> Vec<u8> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        numbers.push(side.recv().await.unwrap()[0]);
    }
    numbers
}

/// A task without budget sends many messages, which arrive in order.
async fn arrive_in_order([one, other]: [&Side; 2], how: How, text: &str) {
    let sent = (0..MANY).map(|i| one.rdma.send(one.filled(&[i])).owned());
    let sent: Vec<_> = sent.collect();
    let task = tokio::spawn(async move {
        spend().await;
        all(how, sent).await
    });
    let got = numbers(other, MANY.into()).await;
    assert_eq!(got, (0..MANY).collect::<Vec<_>>(), "{text}");
    task.await.unwrap();
}

#[test]
fn messages_of_a_task_without_budget_arrive_in_order() {
    for (setup, depth) in setups() {
        for how in ALL {
            run(async {
                let (one, other) = pair(setup, depth);
                let text = format!("{how:?}, depth {depth}, {setup:?}");
                arrive_in_order([&one, &other], how, &text).await;
            });
        }
    }
}

#[test]
fn messages_of_several_workers_tasks_arrive_in_order() {
    for (setup, depth) in setups() {
        let (one, other) = pair(setup, depth);
        let stories = async move {
            for how in ALL {
                let text = format!("{how:?}, depth {depth}, {setup:?}");
                arrive_in_order([&one, &other], how, &text).await;
            }
        };
        workers().block_on(in_time("the messages", stories));
    }
}

#[test]
fn receives_of_a_task_without_budget_are_posted_in_order() {
    for (setup, receives) in setups() {
        for how in ALL {
            run(async {
                let setup = Setup { receives, ..setup };
                let (one, other) = pair(setup, 32);
                let bufs: Vec<_> = (0..MANY).map(|_| other.empty()).collect();
                let recvs = bufs.iter().map(|buf| other.rdma.recv(buf.clone()).owned());
                let recvs: Vec<_> = recvs.collect();
                let task = tokio::spawn(async move {
                    spend().await;
                    all(how, recvs).await
                });
                for i in 0..MANY {
                    one.send(&[i]).await.unwrap();
                }
                task.await.unwrap();
                let got: Vec<u8> = bufs.iter().map(|buf| buf.data().unwrap()[0]).collect();
                let text = format!("{how:?}, {receives} places, {setup:?}");
                assert_eq!(got, (0..MANY).collect::<Vec<_>>(), "{text}");
            });
        }
    }
}

#[test]
fn jobs_of_a_sync_event_of_a_task_without_budget_are_done_in_order() {
    for (setup, depth) in setups() {
        for how in ALL {
            run(async {
                let event = event(setup, depth);
                let adds = (0..MANY).map(|_| event.add(1).owned()).collect();
                let task = tokio::spawn(async move {
                    spend().await;
                    all(how, adds).await
                });
                let text = format!("{how:?}, depth {depth}, {setup:?}");
                for (at, before) in in_time(&text, task).await.unwrap() {
                    assert_eq!(before, at as u64, "{text}");
                }
            });
        }
    }
}

type Sending = Pin<Box<dyn Future<Output = Result<usize, JobError>> + Send>>;

fn sending(side: &Side, number: u8) -> Sending {
    Box::pin(side.rdma.send(side.filled(&[number])).owned())
}

/// Returns sends that occupy all slots, because the peer has no receive, and two sends that wait
/// for a slot.
fn in_line(side: &Side) -> (Vec<Sending>, Sending, Sending) {
    let mut sendings: Vec<Sending> = (0..side.workq.depth() as u8 + 2)
        .map(|number| sending(side, number))
        .collect();
    sendings.iter_mut().for_each(|it| poll_pending(it.as_mut()));
    assert_eq!(side.workq.in_flight(), side.workq.depth() as usize);
    let (second, first) = (sendings.pop().unwrap(), sendings.pop().unwrap());
    (sendings, first, second)
}

/// Wakes all waiting operations, although no slot is free.
fn wake_for_nothing(workq: &WorkQ, setup: Setup) {
    for mode in [Mode::EventDriven, Mode::BusyPoll, setup.mode] {
        workq.set_mode(mode).unwrap();
    }
}

fn refused<T>(outcome: Result<T, impl Into<JobError>>) {
    let outcome = outcome.map_err(Into::into);
    assert_eq!(
        outcome.err().map(|error| error.kind()),
        Some(ErrorKind::Again)
    );
}

#[test]
fn one_in_line_that_is_polled_late_is_not_passed() {
    for (setup, tries) in Setup::all().into_iter().flat_map(|it| [(it, 0), (it, 2)]) {
        run(async {
            let (one, other) = pair(setup, 2);
            let (have_slots, mut first, mut second) = in_line(&one);
            if tries > 0 {
                wake_for_nothing(&one.workq, setup);
                let buf = one.filled(&[4]);
                // No slot is free, so no waiting send is passed.
                (0..tries).for_each(|_| refused(one.rdma.send(&buf).start()));
                poll_pending(first.as_mut());
                poll_pending(second.as_mut());
            }
            let all = numbers(&other, 4);
            let (got, ()) = tokio::join!(all, async {
                for it in have_slots {
                    it.await.unwrap();
                }
                // Both sends were notified, and the slots are free.
                assert_eq!(one.workq.in_flight(), 0);
                poll_pending(second.as_mut());
                let first = first.as_mut();
                let both = tokio::join!(first, second);
                assert_eq!(both, (Ok(1), Ok(1)));
            });
            assert_eq!(got, [0, 1, 2, 3], "{tries} tries, {setup:?}");
        });
    }
}

#[test]
fn a_receive_in_line_that_is_polled_late_is_not_passed() {
    for setup in Setup::all() {
        run(async {
            let receives = 2;
            let (one, other) = pair(Setup { receives, ..setup }, 32);
            let bufs: Vec<_> = (0..4).map(|_| other.empty()).collect();
            let recvs = bufs
                .iter()
                .map(|buf| Box::pin(other.rdma.recv(buf.clone()).owned()));
            let mut recvs: Vec<_> = recvs.collect();
            recvs.iter_mut().for_each(|it| poll_pending(it.as_mut()));
            let (mut second, mut first) = (recvs.pop().unwrap(), recvs.pop().unwrap());
            wake_for_nothing(&other.workq, setup);
            let buf = other.empty();
            (0..2).for_each(|_| refused(other.rdma.recv(&buf).start()));
            poll_pending(first.as_mut());
            poll_pending(second.as_mut());
            for (number, recv) in (0..).zip(recvs) {
                one.send(&[number]).await.unwrap();
                recv.await.unwrap();
            }
            // Both receives were notified, and the entries are free.
            poll_pending(second.as_mut());
            let sent = async {
                one.send(&[2]).await.unwrap();
                one.send(&[3]).await.unwrap();
            };
            let (first, second, ()) = tokio::join!(first, second, sent);
            assert!(first.is_ok() && second.is_ok());
            let got: Vec<u8> = bufs.iter().map(|buf| buf.data().unwrap()[0]).collect();
            assert_eq!(got, [0, 1, 2, 3], "{setup:?}");
        });
    }
}

#[test]
fn those_that_are_passed_keep_their_order() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup, 2);
            let (have_slots, first, mut second) = in_line(&one);
            let (got, ()) = tokio::join!(numbers(&other, 5), async {
                for it in have_slots {
                    it.await.unwrap();
                }
                let buf = one.filled(&[4]);
                refused(one.rdma.send(&buf).start());
                one.rdma.send(&buf).start().unwrap().await.unwrap();
                poll_pending(second.as_mut());
                let both = tokio::join!(first, second);
                assert_eq!(both, (Ok(1), Ok(1)));
            });
            assert_eq!(got, [0, 1, 4, 2, 3], "{setup:?}");
        });
    }
}

#[test]
fn one_in_line_that_nobody_polls_is_passed() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup, 2);
            let (have_slots, first, second) = in_line(&one);
            let second = tokio::spawn(second);
            let all = numbers(&other, 4);
            let (got, ()) = tokio::join!(in_time("all", all), async {
                for it in have_slots {
                    it.await.unwrap();
                }
                assert_eq!(in_time("the second", second).await.unwrap(), Ok(1));
                let third = in_time("the third", sending(&one, 4)).await;
                assert_eq!(third, Ok(1), "and so does each that comes later");
            });
            assert_eq!(got[..2], [0, 1], "{setup:?}");
            assert_eq!(got[2..], [3, 4], "{setup:?}");
            drop(first);
        });
    }
}

#[test]
fn what_does_not_wait_passes_one_in_line_at_its_second_try() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup, 1);
            let mut sendings: Vec<Sending> = (0..2).map(|number| sending(&one, number)).collect();
            sendings.iter_mut().for_each(|it| poll_pending(it.as_mut()));
            let unpolled = sendings.pop().unwrap();
            let (got, ()) = tokio::join!(numbers(&other, 2), async {
                sendings.pop().unwrap().await.unwrap();
                let buf = one.filled(&[2]);
                refused(one.rdma.send(&buf).start());
                one.rdma.send(&buf).start().unwrap().await.unwrap();
            });
            assert_eq!(got, [0, 2], "{setup:?}");
            let (last, sent) = tokio::join!(numbers(&other, 1), unpolled);
            assert_eq!((last, sent), (vec![1], Ok(1)), "{setup:?}");
        });
    }
}

#[test]
fn what_could_be_finished_inline_does_not_pass_one_in_line() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup, 1);
            let (mut first, mut second) = (sending(&one, 0), sending(&one, 1));
            poll_pending(first.as_mut());
            poll_pending(second.as_mut());
            let bufs: Vec<_> = (0..3).map(|_| other.empty()).collect();
            let recvs = bufs.iter().map(|buf| other.rdma.recv(buf).start().unwrap());
            let recvs: Vec<_> = recvs.collect();
            // The second send is notified, and not polled.
            assert_eq!(in_time("the first", first).await, Ok(1));
            let mut third = sending(&one, 2);
            let early = third.as_mut().now_or_never();
            assert_eq!(early, None, "{setup:?}");
            let sent = tokio::join!(second, third);
            assert_eq!(sent, (Ok(1), Ok(1)));
            for (recv, (buf, number)) in recvs.into_iter().zip(bufs.iter().zip(0..)) {
                recv.await.unwrap();
                assert_eq!(buf.data().unwrap()[..], [number], "{setup:?}");
            }
        });
    }
}

/// Polls each future once, in a task without budget. Returns those that are still pending.
async fn polled_without_budget<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<Pin<Box<F>>> {
    spend().await;
    futures.retain_mut(|future| future.as_mut().now_or_never().is_none());
    futures
}

#[test]
fn a_message_is_sent_though_its_future_yields() {
    for mode in [Mode::EventDriven, Mode::BusyPoll] {
        run(async {
            let (one, other) = pair(Setup::new(false, mode), 32);
            let bufs: Vec<_> = (0..16).map(|_| other.empty()).collect();
            let recvs = bufs.iter().map(|buf| other.rdma.recv(buf).start().unwrap());
            let recvs: Vec<_> = recvs.collect();
            let sent = (0..16u8).map(|i| Box::pin(one.rdma.send(one.filled(&[i])).owned()));
            let sent: Vec<_> = sent.collect();
            let task = tokio::spawn(polled_without_budget(sent));
            let kept = in_time("the polls", task).await.unwrap();
            assert_eq!(kept.len(), 16, "they yield");
            for recv in recvs {
                in_time("a message", recv).await.unwrap();
            }
            assert_eq!(one.workq.in_flight(), 0, "they were finished inline");
            for sent in kept {
                assert_eq!(in_time("the end of one", sent).await, Ok(1));
            }
        });
    }
}

#[test]
fn a_receive_that_yields_is_posted_and_hands_its_message_on() {
    for setup in Setup::all() {
        run(async {
            let (one, other) = pair(setup, 32);
            let sent: Vec<_> = (0..16u8).map(|i| sending(&one, i)).collect();
            let sent = tokio::spawn(join_all(sent));
            tokio::task::yield_now().await;
            let recvs = (0..16).map(|_| Box::pin(other.rdma.recv(other.empty()).owned()));
            let recvs: Vec<_> = recvs.collect();
            let count = Arc::new(Mutex::new(0));
            let counted = Arc::clone(&count);
            let task = tokio::spawn(async move {
                let pending = polled_without_budget(recvs).await;
                *counted.lock().unwrap() = 16 - pending.len();
            });
            in_time("the polls", task).await.unwrap();
            let taken = *count.lock().unwrap();
            if adapter().is_none() {
                for sent in in_time("what was sent to dropped receives", sent)
                    .await
                    .unwrap()
                {
                    assert_eq!(sent, Ok(1), "{setup:?}");
                }
            }
            let got = numbers(&other, 16 - taken).await;
            assert_eq!(got, (taken as u8..16).collect::<Vec<_>>(), "{setup:?}");
        });
    }
}

#[test]
fn a_loop_of_messages_lets_other_tasks_go_on() {
    run(async {
        let (one, other) = pair(Setup::new(false, Mode::BusyPoll), 32);
        let echo: Rdma = other.rdma.clone();
        let turns = turns_of_another();
        let before = turns();
        for _ in 0..100_000 {
            let recv = echo.recv(()).start().unwrap();
            one.rdma.send(()).await.unwrap();
            recv.await.unwrap();
            if turns() > before {
                return;
            }
        }
        panic!("no other task had a turn");
    });
}
