//! Loom models of the software device: the inbox, the doorbell, and a whole queue from `submit` to `retire`.
//!
//! The ring is a real one: whoever completes looks whether the eventfd became readable, and wakes the reaper if so.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![expect(
    unsafe_code,
    reason = "pushes nodes, and submits Jobs whose memory is not touched"
)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool as StdAtomicBool, AtomicUsize as Tally};
use std::sync::{Arc, OnceLock};

use super::counter::Counter;
use super::device::DeviceShared;
use super::engine::{Engine, EngineShared};
use super::fault::Faults;
use super::inbox::{Inbox, Linked, List};
use super::queue::{Doorbell, SoftQueue, WorkList};
use crate::device::{
    Armed, Completion, Job, Keep, Queue, QueueConfig, Segment, Segments, Signal, Token,
};
use crate::error::{ErrorKind, JobError};
use crate::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Relaxed, SeqCst},
};
use crate::sync::loom::{Task, Watched, check, mutant, spawn};

/// A node with something in it that its pusher writes and its taker reads.
struct Item {
    next: AtomicPtr<Item>,
    content: Watched,
    number: usize,
}

// SAFETY: it is the field.
unsafe impl Linked for Item {
    fn next(&self) -> &AtomicPtr<Item> {
        &self.next
    }
}

impl Item {
    fn new(number: usize) -> Item {
        Item {
            next: AtomicPtr::new(ptr::null_mut()),
            content: Watched::new(),
            number,
        }
    }
}

/// Items, and the inbox that they go through.
struct Post {
    items: [Item; 3],
    inbox: Inbox<Item>,
    head: AtomicPtr<Item>,
}

impl Post {
    fn new() -> Arc<Post> {
        Arc::new(Post {
            items: [0, 1, 2].map(Item::new),
            inbox: Inbox::new(),
            head: AtomicPtr::new(ptr::null_mut()),
        })
    }

    fn push(&self, at: usize) {
        self.items[at].content.write();
        // SAFETY: each is pushed once, and lives as long as the Post.
        unsafe { self.inbox.push(NonNull::from(&self.items[at])) };
    }

    /// Like a push of the first item, with the wrong ordering.
    fn push_relaxed(&self, at: usize) {
        let item = &self.items[at];
        item.content.write();
        self.head.swap(ptr::from_ref(item).cast_mut(), Relaxed);
    }

    fn take(&self, seen: &mut Vec<usize>) {
        let mut list: List<Item> = self.inbox.take();
        while let Some(item) = list.pop() {
            // SAFETY: an item of this Post.
            let item = unsafe { item.as_ref() };
            item.content.write();
            seen.push(item.number);
        }
    }
}

#[test]
fn what_is_pushed_is_taken_once_and_in_order() {
    check(3, || {
        let post = Post::new();
        let pushers = [&[0usize, 1][..], &[2]].map(|numbers| {
            let post = Arc::clone(&post);
            spawn(move || numbers.iter().for_each(|&at| post.push(at)))
        });
        let mut seen = Vec::new();
        post.take(&mut seen);
        for pusher in pushers {
            pusher.join().unwrap();
        }
        post.take(&mut seen);
        let of_the_first: Vec<usize> = seen.iter().copied().filter(|&number| number < 2).collect();
        assert_eq!((seen.len(), &of_the_first[..]), (3, &[0, 1][..]));
    });
}

#[test]
fn mutant_that_pushes_relaxed_is_found() {
    mutant("Causality violation", || {
        check(3, || {
            let post = Post::new();
            let pusher = {
                let post = Arc::clone(&post);
                spawn(move || post.push_relaxed(0))
            };
            // SAFETY: null, or an item of this Post.
            if let Some(item) = unsafe { post.head.load(Acquire).as_ref() } {
                item.content.read();
            }
            pusher.join().unwrap();
        });
    });
}

/// The eventfd, and how often it was rung.
struct Bell {
    signal: Arc<Signal>,
    rings: Tally,
}

impl Bell {
    fn new() -> Bell {
        Bell {
            signal: Arc::new(Signal::new().unwrap()),
            rings: Tally::new(0),
        }
    }

    /// What the driver would do: wakes if it was rung.
    fn listen(&self, task: &Task) {
        let fd = self.signal.as_fd().try_clone_to_owned().unwrap();
        if File::from(fd).read(&mut [0; 8]).is_ok() {
            self.rings.fetch_add(1, SeqCst);
            task.waker().wake();
        }
    }
}

/// One completion, by `complete`, and one that waits for it: `sleeps` says whether it may, after it has looked.
fn one_is_rung_for(complete: fn(&Post, &Doorbell), sleeps: fn(&Post, &Doorbell) -> bool) {
    check(4, move || {
        let (post, bell) = (Post::new(), Arc::new(Bell::new()));
        let doorbell = Arc::new(Doorbell::new(Arc::clone(&bell.signal)));
        let task = Arc::new(Task::new());
        let device = {
            let (post, doorbell) = (Arc::clone(&post), Arc::clone(&doorbell));
            let (bell, task) = (Arc::clone(&bell), Arc::clone(&task));
            spawn(move || {
                complete(&post, &doorbell);
                bell.listen(&task);
            })
        };
        let mut seen = Vec::new();
        loop {
            post.take(&mut seen);
            if !seen.is_empty() {
                break;
            }
            if sleeps(&post, &doorbell) {
                task.sleep();
            }
        }
        device.join().unwrap();
    });
}

fn publish_then_ring(post: &Post, doorbell: &Doorbell) {
    post.push(0);
    doorbell.completed();
}

fn arm_then_look(post: &Post, doorbell: &Doorbell) -> bool {
    doorbell.arm();
    post.inbox.is_empty()
}

#[test]
fn who_arms_and_then_looks_is_rung_for_or_sees_it() {
    one_is_rung_for(publish_then_ring, arm_then_look);
}

#[test]
fn mutant_that_looks_and_then_arms_is_found() {
    let look_then_arm = |post: &Post, doorbell: &Doorbell| {
        let empty = post.inbox.is_empty();
        doorbell.arm();
        empty
    };
    mutant("deadlock", || {
        one_is_rung_for(publish_then_ring, look_then_arm)
    });
}

#[test]
fn mutant_that_rings_before_it_publishes_is_found() {
    let ring_then_publish = |post: &Post, doorbell: &Doorbell| {
        doorbell.completed();
        post.push(0);
    };
    mutant("deadlock", || {
        one_is_rung_for(ring_then_publish, arm_then_look)
    });
}

/// A real queue, whose engine's thread is the model's.
struct Bed {
    queue: Arc<SoftQueue>,
    engine: Arc<EngineShared>,
    bell: Bell,
    reaper: Task,
    /// Where the engine waits for Jobs.
    worker: Task,
}

impl Bed {
    fn new(depth: u32) -> Arc<Bed> {
        let bell = Bell::new();
        let engine = Arc::new(EngineShared {
            inbox: Inbox::new(),
            sleeping: StdAtomicBool::new(false),
            stop: StdAtomicBool::new(false),
            thread: OnceLock::new(),
            submitter: Tally::new(0),
            jobs: 0.into(),
        });
        let device = DeviceShared {
            faults: Faults::new(0),
            inline_jobs: Counter::new(),
        };
        let config = QueueConfig::new(depth, Arc::clone(&bell.signal));
        let handle = Arc::new(Engine(Arc::clone(&engine)));
        Arc::new(Bed {
            queue: SoftQueue::open(config, Arc::new(device), handle),
            engine,
            bell,
            reaper: Task::new(),
            worker: Task::new(),
        })
    }

    fn submit(&self, index: u32) {
        let segment = Segments::one(Segment {
            addr: NonNull::dangling(),
            len: 1,
            key: 0,
        });
        let job = Job::Copy {
            src: segment,
            dst: segment,
            len: 1,
        };
        // SAFETY: the engine fails every Job, and touches no memory; each index is used once.
        let submitted = unsafe { self.queue.submit(&[(Token::new(0, index, 0), job)]) };
        assert_eq!(submitted.accepted, 1);
        self.worker.waker().wake();
    }

    /// Fails so many Jobs.
    fn work(&self, jobs: usize) {
        let mut list = WorkList::new();
        for _ in 0..jobs {
            let work = loop {
                list.take(&self.engine.inbox);
                match list.pop() {
                    Some(work) => break work,
                    None => self.worker.sleep(),
                }
            };
            work.finish(Some(JobError::device(ErrorKind::IoFailed, 0)));
            self.bell.listen(&self.reaper);
        }
    }

    /// Reaps what there is, in batches of `batch`.
    fn reap(&self, batch: usize, seen: &mut Vec<u32>) {
        let nothing = Completion {
            token: Token::from_raw(0),
            result: Ok(0),
        };
        let mut out = [nothing; 2];
        loop {
            // SAFETY: each model reaps on one thread.
            let reaped = unsafe { self.queue.reap(&mut out[..batch]) };
            seen.extend(out[..reaped].iter().map(|done| done.token.index()));
            if reaped < batch {
                return;
            }
        }
    }
}

#[test]
fn a_queue_hands_every_job_back_once_and_rings_for_it() {
    check(3, || {
        let bed = Bed::new(2);
        let engine = {
            let bed = Arc::clone(&bed);
            spawn(move || bed.work(2))
        };
        bed.submit(0);
        bed.submit(1);
        let (mut seen, mut arms) = (Vec::new(), 0);
        loop {
            bed.reap(1, &mut seen);
            if seen.len() == 2 {
                break;
            }
            arms += 1;
            if bed.queue.arm() == Armed::Armed {
                bed.reaper.sleep();
            }
        }
        engine.join().unwrap();
        assert_eq!(seen, [0, 1], "in order");
        assert!(bed.bell.rings.load(SeqCst) <= arms, "once per arm");
    });
}

/// What `retire` keeps: it says when it is dropped, and the queue goes with it.
struct Kept {
    _queue: Arc<SoftQueue>,
    drops: Arc<Tally>,
    finished: Arc<Tally>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        assert_eq!(self.finished.load(SeqCst), 2, "after the last Job");
        self.drops.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_retired_queue_keeps_goes_once_and_after_the_last_job() {
    check(3, || {
        let bed = Bed::new(2);
        let (drops, finished) = (Arc::new(Tally::new(0)), Arc::new(Tally::new(0)));
        bed.submit(0);
        bed.submit(1);
        let engine = {
            let (engine, finished) = (Arc::clone(&bed.engine), Arc::clone(&finished));
            spawn(move || {
                let mut list = WorkList::new();
                list.take(&engine.inbox);
                while let Some(work) = list.pop() {
                    finished.fetch_add(1, SeqCst);
                    work.finish(Some(JobError::device(ErrorKind::IoFailed, 0)));
                }
            })
        };
        let mut seen = Vec::new();
        bed.reap(2, &mut seen);
        let queue = Arc::clone(&bed.queue);
        drop(bed);
        let keep: Keep = Arc::new(Kept {
            _queue: Arc::clone(&queue),
            drops: Arc::clone(&drops),
            finished,
        });
        // SAFETY: two were submitted, no memory is touched, and this thread alone had the queue.
        unsafe { queue.retire(keep, 2 - seen.len()) };
        drop(queue);
        engine.join().unwrap();
        assert_eq!(drops.load(SeqCst), 1, "exactly once");
    });
}
