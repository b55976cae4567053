//! Models of posted operations without a slot: an entry that is woken is polled once more, even if
//! it is woken while it is polled.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::on_a_workq;
use crate::reactor::tables::{End, PostedRun};
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::loom::{mutant, spawn};
use crate::sync::{Mutex, lock};

/// The event that an entry waits for.
#[derive(Default)]
struct Gong {
    struck: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Gong {
    fn strike(&self) {
        self.struck.store(true, SeqCst);
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

struct Listener {
    gong: Arc<Gong>,
    registers_first: bool,
}

impl PostedRun for Listener {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Box<dyn Any + Send>> {
        let struck = || self.gong.struck.load(SeqCst);
        let looked = !self.registers_first && struck();
        *lock(&self.gong.waker) = Some(cx.waker().clone());
        match looked || self.registers_first && struck() {
            true => Poll::Ready(Box::new(())),
            false => Poll::Pending,
        }
    }
}

/// One thread strikes the gong, and two threads collect. The entry must be handed out once.
fn one_is_told(registers_first: bool) {
    on_a_workq(1, move |bed| {
        let gong = Arc::<Gong>::default();
        let listener = Listener {
            gong: Arc::clone(&gong),
            registers_first,
        };
        bed.workq.post_run(9, Box::pin(listener));
        let collect = |workq: &super::WorkQ| {
            workq.collect(|user_data, end| assert!(user_data == 9 && matches!(end, End::Run(_))))
        };
        let collecting = {
            let workq = bed.workq.clone();
            spawn(move || collect(&workq))
        };
        let striking = spawn(move || gong.strike());
        let mut told = collect(&bed.workq);
        told += collecting.join().unwrap();
        striking.join().unwrap();
        told += collect(&bed.workq);
        assert_eq!(told, 1, "told so often");
    });
}

#[test]
fn an_entry_that_is_woken_is_told_once() {
    one_is_told(true);
}

#[test]
fn mutant_that_looks_and_then_registers_is_found() {
    mutant("told so often", || one_is_told(false));
}
