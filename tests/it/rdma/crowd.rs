//! Queues that are connected to many peer queues, most of which are idle, or come and go: each
//! message is received.

use support::events::between;
use support::rdma::{Setup, Side, connect};
use support::*;
use tokio_doca::{Mode, Rdma, WorkQ};

/// More peer queues than a queue checks in one poll.
const PEERS: usize = 70;

fn workq(mode: Mode) -> WorkQ {
    WorkQ::builder().depth(8).mode(mode).build().unwrap()
}

/// A queue whose `here[at]` is connected to `peers[at]`, which has its own queue.
struct Crowd {
    queue: WorkQ,
    here: Vec<Side>,
    peers: Vec<Side>,
}

impl Crowd {
    fn new(mode: Mode) -> Crowd {
        let (device, queue) = (device::under_test(false), workq(mode));
        let setup = Setup::new(false, mode);
        let pair = |_| {
            let here = Side::on(&device, &queue, setup);
            let peer = Side::on(&device, &workq(mode), setup);
            connect(&here.rdma, &peer.rdma);
            (here, peer)
        };
        let (here, peers) = (0..PEERS).map(pair).unzip();
        Crowd { queue, here, peers }
    }

    /// Sends a message from a peer to the queue, which sleeps or polls meanwhile, and one back.
    async fn there_and_back(&self, at: usize) {
        let (here, peer) = (&self.here[at], &self.peers[at]);
        for (from, to) in [(peer, here), (here, peer)] {
            let both = futures::future::join(to.recv(), async {
                // The receiver may be asleep by now.
                tokio::task::yield_now().await;
                from.rdma.send(from.filled(b"hello")).await.unwrap();
            });
            let (came, ()) = in_time("a message", both).await;
            assert_eq!(came.unwrap(), b"hello");
        }
    }
}

#[test]
fn a_queue_hears_each_of_many_peers() {
    for mode in [Mode::EventDriven, Mode::BusyPoll, Mode::default()] {
        let crowd = Crowd::new(mode);
        run(async {
            for round in 0..300 {
                crowd.there_and_back(round * 31 % PEERS).await;
            }
        });
    }
}

/// While the queue is event-driven, the doorbells of some pages wake it; once it polls, it reads
/// those pages itself.
#[test]
fn a_queue_that_begins_to_poll_hears_each_of_many_peers() {
    let crowd = Crowd::new(Mode::EventDriven);
    run(async {
        for mode in [Mode::BusyPoll, Mode::EventDriven, Mode::BusyPoll] {
            for at in 0..PEERS {
                crowd.there_and_back(at).await;
            }
            crowd.queue.set_mode(mode).unwrap();
        }
        for at in (0..PEERS).rev() {
            crowd.there_and_back(at).await;
        }
    });
}

/// One of two queues has released the page that connects them; the other queue, which has not
/// polled since, connects by it again.
#[test]
fn a_peer_queue_that_comes_back_is_heard() {
    for mode in [Mode::EventDriven, Mode::BusyPoll, Mode::default()] {
        let (device, setup) = (device::under_test(false), Setup::new(false, mode));
        let queues = [workq(mode), workq(mode)];
        let sides = || {
            queues
                .each_ref()
                .map(|queue| Side::on(&device, queue, setup))
        };
        let [first, last] = sides();
        connect(&first.rdma, &last.rdma);
        let [here, there] = sides();
        let queue = queues[0].clone();
        let crowd = Crowd {
            queue,
            here: vec![here],
            peers: vec![there],
        };
        run(async {
            drop(last);
            poll_pending(std::pin::pin!(crowd.peers[0].recv()));
            connect(&crowd.here[0].rdma, &crowd.peers[0].rdma);
            for _ in 0..3 {
                crowd.there_and_back(0).await;
            }
        });
    }
}

/// Attaches more contexts than a WorkQ can have at once, one after the other, while nothing polls
/// the WorkQ.
#[test]
fn contexts_that_come_and_go_leave_room_for_more() {
    if device::needs_soft("a queue pair of an adapter takes long to make") {
        return;
    }
    let (device, workq) = (device::under_test(false), workq(Mode::EventDriven));
    for _ in 0..5000 {
        Rdma::builder(&device).attach(&workq).unwrap();
        between(&device).attach(&workq).unwrap();
    }
}
