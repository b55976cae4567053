//! The memory of the streams of one listener or connector. It is allocated in parts as connections
//! come: a part is the memory of several streams. A thread that may block allocates and registers
//! it.

use std::cmp::Reverse;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::is_of_rdma;
use crate::device::{Device, RegistrationUse};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::{Buf, BufPool, Mmap};
use crate::stream::options::StreamOptions;
use crate::sync::{Blocking, Mutex, Polled, for_peers, lock};

/// The maximum number of bytes of a part for several streams.
const PART: usize = 8 << 20;

/// The alignment of each Buf: a cache line.
const ALIGN: usize = 64;

/// The number of bytes of a Buf for control frames.
const CONTROL: usize = 64;

pub(super) struct Memory {
    options: StreamOptions,
    /// `None` if the memory is not registered with a device, since there is no RDMA.
    device: Option<Device>,
    parts: Arc<Mutex<Vec<Part>>>,
    /// True while a part is being added.
    growing: Arc<Polled<bool>>,
}

/// The right to add a part, which one task has at a time.
struct Growing(Arc<Polled<bool>>);

impl Growing {
    async fn begin(all: &Arc<Polled<bool>>) -> Growing {
        let begin = || {
            all.poll(|growing, _| match std::mem::replace(growing, true) {
                true => Poll::Pending,
                false => Poll::Ready(Growing(Arc::clone(all))),
            })
        };
        all.wait(begin).await
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.0.poll(|growing, cx| {
            *growing = false;
            cx.waker().wake_by_ref();
        });
    }
}

/// The memory of some streams.
struct Part {
    /// True if the part is registered with the device.
    registered: bool,
    receives: BufPool,
    sends: BufPool,
    control: BufPool,
}

/// The memory of one stream.
pub(in crate::stream) struct Pools {
    pub(in crate::stream) receives: BufPool,
    pub(super) sends: BufPool,
    /// Two small Bufs for control frames (`core::Parts::control`).
    pub(super) control: [Buf; 2],
}

impl Memory {
    pub(super) fn new(options: StreamOptions, device: Option<&Device>) -> Memory {
        Memory {
            options,
            device: device.cloned(),
            parts: Arc::default(),
            growing: Arc::new(Polled::new(false)),
        }
    }

    /// Takes the memory of a stream, registered with the device if `rdma` is set. If all parts are
    /// in use, the result may be memory that an ended stream has not given back completely.
    pub(super) async fn take(&self, op: &'static str, rdma: bool) -> Result<Pools> {
        let (_, receives, _) = self.options.bufs_of_a_stream();
        if let Some(pools) = take_whole(&lock(&*self.parts), receives, rdma) {
            return Ok(pools);
        }
        let growing = Growing::begin(&self.growing).await;
        {
            let parts = lock(&*self.parts);
            // The task that added a part before this one may have left memory for more streams.
            if let Some(pools) = take_whole(&parts, receives, rdma) {
                return Ok(pools);
            }
            if streams(&parts) == self.options.connections {
                return take_any(&parts, rdma).ok_or_else(|| self.full(op));
            }
        }
        let grown = self.grow(op, rdma, growing).await;
        grown.or_else(|error| take_any(&lock(&*self.parts), rdma).ok_or(error))
    }

    pub(super) fn full(&self, op: &'static str) -> Error {
        let text = format!(
            "all memory for {} streams is in use: drop one, or set StreamOptions::connections",
            self.options.connections
        );
        Error::new(ErrorKind::Full, op, text)
    }

    /// Adds a part, and takes the memory of a stream from it. The part is added even if the future
    /// is dropped meanwhile.
    async fn grow(&self, op: &'static str, rdma: bool, growing: Growing) -> Result<Pools> {
        let (options, device) = (self.options, self.device.clone());
        let parts = Arc::clone(&self.parts);
        let mut call = Blocking::new();
        call.begin(for_peers(), op, move || {
            let there = streams(&lock(&*parts));
            let fit = (PART / options.bytes_of_a_stream()).max(1);
            let many = fit.min(options.connections - there);
            let new = |device: Option<&Device>| {
                let shared = options.recv_bufs.and_then(|_| {
                    let parts = lock(&*parts);
                    let part = parts
                        .iter()
                        .find(|part| part.registered >= device.is_some());
                    part.map(|part| part.receives.clone())
                });
                Part::new(&options, device, shared, many)
            };
            let part = match new(device.as_ref()) {
                Err(error) if !rdma && device.is_some() && is_of_rdma(&error) => new(None),
                part => part,
            }?;
            let pools = part.take();
            lock(&*parts).push(part);
            drop(growing);
            Ok(pools.expect("it is new"))
        })?;
        let grown = poll_fn(|cx| call.poll(op, cx)).await;
        grown.map_err(|error| match error.kind() {
            ErrorKind::NoMemory => {
                let text = format!(
                    "{}; streams take {} KiB each: set fewer StreamOptions::connections, or a \
                     smaller frame_size or recv_window",
                    error.message(),
                    self.options.bytes_of_a_stream() >> 10
                );
                Error::new(ErrorKind::NoMemory, op, text)
            }
            _ => error.with_call(op),
        })
    }
}

impl StreamOptions {
    /// Returns the length of a frame's Buf, including the padding to `ALIGN`, and the numbers of a
    /// stream's own Bufs to receive and to send.
    fn bufs_of_a_stream(&self) -> (usize, usize, usize) {
        let receives = match self.recv_bufs {
            Some(_) => 0,
            None => self.receives(),
        };
        let element = self.frame_size.next_multiple_of(ALIGN);
        (element, receives, self.send_window.div_ceil(2))
    }

    fn bytes_of_a_stream(&self) -> usize {
        let (element, receives, sends) = self.bufs_of_a_stream();
        element * (receives + sends) + 2 * CONTROL
    }
}

/// Returns the number of streams for which there is memory.
fn streams(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.control.elements() / 2).sum()
}

/// Takes the memory of a stream from a part that has `receives` free Bufs to receive.
fn take_whole(parts: &[Part], receives: usize, rdma: bool) -> Option<Pools> {
    parts
        .iter()
        .filter(|part| part.registered >= rdma)
        .find_map(|part| {
            // `take` comes first, since it is cheap if the part has no memory left, and counting
            // free Bufs visits each of them.
            let pools = part.take()?;
            let whole = receives == 0 || part.receives.stats().free >= receives;
            whole.then_some(pools)
        })
}

/// Takes the memory of a stream from the part that has the most free Bufs to receive.
fn take_any(parts: &[Part], rdma: bool) -> Option<Pools> {
    let mut all: Vec<_> = parts
        .iter()
        .filter(|part| part.registered >= rdma)
        .collect();
    all.sort_by_cached_key(|part| Reverse(part.receives.stats().free));
    all.into_iter().find_map(Part::take)
}

impl Part {
    fn new(
        options: &StreamOptions,
        device: Option<&Device>,
        shared: Option<BufPool>,
        streams: usize,
    ) -> Result<Part> {
        let (element, receives, sends) = options.bufs_of_a_stream();
        let shared = match (shared, options.recv_bufs) {
            (None, Some(bufs)) => {
                let memory = alloc(device, bufs * element)?;
                Some(pool(&memory, 0, bufs * element, options.frame_size)?)
            }
            (shared, _) => shared,
        };
        let memory = alloc(device, streams * options.bytes_of_a_stream())?;
        let [receives, sends] = [receives, sends].map(|bufs| bufs * element * streams);
        Ok(Part {
            registered: device.is_some(),
            receives: match shared {
                Some(shared) => shared,
                None => pool(&memory, 0, receives, options.frame_size)?,
            },
            sends: pool(&memory, receives, sends, options.frame_size)?,
            control: pool(&memory, receives + sends, 2 * CONTROL * streams, CONTROL)?,
        })
    }

    fn take(&self) -> Option<Pools> {
        let control = [self.control.try_alloc(), self.control.try_alloc()];
        let [Ok(credits), Ok(end)] = control else {
            return None;
        };
        Some(Pools {
            receives: self.receives.clone(),
            sends: self.sends.clone(),
            control: [credits, end],
        })
    }
}

fn alloc(device: Option<&Device>, len: usize) -> Result<Mmap> {
    let Some(device) = device else {
        return Mmap::builder().alloc_for_copies(len);
    };
    // For each additional use, an adapter would lock the memory again.
    let memory = Mmap::builder().only_for(RegistrationUse::Rdma);
    memory.device(device).alloc(len)
}

fn pool(memory: &Mmap, from: usize, len: usize, element: usize) -> Result<BufPool> {
    let pool = BufPool::builder(memory).range(from..from + len);
    pool.element_size(element).alignment(ALIGN).build()
}
