//! What the behaviour tests share: a bench (device, memory, WorkQ and context) in every
//! configuration, waiting with a deadline, and polling by hand.

pub mod both_sides;
pub mod channel;
pub mod cm;
pub mod counting;
pub mod crc;
pub mod device;
pub mod events;
pub mod loopback;
pub mod peer;
pub mod programs;
pub mod random;
pub mod rdma;
pub mod sins;
pub mod stream;
pub mod subscriber;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use futures::task::AtomicWaker;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Sleep;
use tokio_doca::soft::{Hold, Soft};
use tokio_doca::{
    Buf, BufPool, Device, Dma, ErrorKind, Mmap, Mode, WorkQ, error::JobError, mem::Access,
};

/// The limit of a single step, after which the step counts as hanging. It only guards against
/// hanging: the machine may be busy, and no test may depend on its speed.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The limit of a whole test of many steps.
const STORY: Duration = LIMIT.saturating_mul(4);

/// The bytes of an element of a bench's pool.
pub const ELEMENT: usize = 4096;

/// The settings of a bench.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// If true, the software device completes no job inside the submission.
    pub defer: bool,
    pub mode: Mode,
    pub depth: u32,
}

impl Config {
    pub fn new(defer: bool, mode: Mode) -> Config {
        Config {
            defer,
            mode,
            depth: 32,
        }
    }

    pub fn depth(self, depth: u32) -> Config {
        Config { depth, ..self }
    }
}

/// Returns the configurations of the software device: inline and deferred, each event-driven and
/// busy-poll.
pub fn configs() -> [Config; 4] {
    [
        Config::new(false, Mode::EventDriven),
        Config::new(true, Mode::EventDriven),
        Config::new(false, Mode::BusyPoll),
        Config::new(true, Mode::BusyPoll),
    ]
}

/// Returns the modes event-driven and busy-poll.
pub fn modes() -> [Mode; 2] {
    [Mode::EventDriven, Mode::BusyPoll]
}

/// The fixture of most tests: a device, memory, and a `Dma` context on a WorkQ.
pub struct Bench {
    pub config: Config,
    pub soft: Soft,
    pub device: Device,
    /// The memory of `pool`, which claims all of it.
    pub mmap: Mmap,
    pub pool: BufPool,
    pub workq: WorkQ,
    pub dma: Dma,
}

impl Bench {
    pub fn new(config: Config) -> Bench {
        Bench::with_soft(config, Soft::builder().defer(config.defer).build())
    }

    pub fn with_soft(config: Config, soft: Soft) -> Bench {
        Bench::on(config, soft, "pf0")
    }

    /// Makes a bench on a named device of `soft`.
    pub fn on(config: Config, soft: Soft, device: &str) -> Bench {
        let device = soft.open(device).unwrap();
        Bench::of(config, soft, device)
    }

    fn of(config: Config, soft: Soft, device: Device) -> Bench {
        let mmap = Mmap::builder().device(&device).alloc(64 * ELEMENT).unwrap();
        let pool = BufPool::builder(&mmap)
            .element_size(ELEMENT)
            .build()
            .unwrap();
        let workq = WorkQ::builder()
            .depth(config.depth)
            .mode(config.mode)
            .build()
            .unwrap();
        let dma = Dma::builder(&device).attach(&workq).unwrap();
        Bench {
            config,
            soft,
            device,
            mmap,
            pool,
            workq,
            dma,
        }
    }

    /// Keeps all jobs in flight until the returned [`Hold`] is dropped.
    pub fn hold(&self) -> Hold {
        self.soft.faults().hold()
    }

    /// Allocates memory that no pool claims.
    pub fn mmap(&self, len: usize) -> Mmap {
        Mmap::builder().device(&self.device).alloc(len).unwrap()
    }

    /// Allocates memory that no pool claims, with these access flags.
    pub fn mmap_with(&self, len: usize, access: Access) -> Mmap {
        let builder = Mmap::builder().device(&self.device).access(access);
        builder.alloc(len).unwrap()
    }

    /// Allocates a Buf of the pool that holds `bytes`.
    pub fn filled(&self, bytes: &[u8]) -> Buf {
        let buf = self.pool.try_alloc().unwrap();
        buf.extend_from_slice(bytes).unwrap();
        buf
    }

    /// Allocates an empty Buf of the pool.
    pub fn empty(&self) -> Buf {
        self.pool.try_alloc().unwrap()
    }

    /// Returns the number of free Bufs in the pool.
    pub fn free_bufs(&self) -> usize {
        free_bufs(&self.pool)
    }

    /// Waits until nothing is in flight and the pool has all its Bufs back. The test must have
    /// dropped its own Bufs.
    pub async fn all_back(&self) {
        until("nothing is in flight", || self.workq.in_flight() == 0).await;
        let all = self.pool.elements();
        until("the pool is full again", || self.free_bufs() == all).await;
    }

    /// Checks that a copy through the engine works. In busy-poll mode, its polls also collect all
    /// other jobs.
    pub async fn engine_works(&self) {
        self.soft.faults().push(tokio_doca::soft::Fault::Pass);
        self.works().await;
    }

    /// Checks that a copy works.
    pub async fn works(&self) {
        let (src, dst) = (self.filled(b"still works"), self.empty());
        let copied = self.dma.copy(&src, &dst).await;
        assert_eq!(copied, Ok(11));
        assert_eq!(&dst.data().unwrap()[..], b"still works");
    }
}

/// Runs a test in a process of its own, where it can count threads and descriptors. Returns true in
/// that process. In the first process, runs the second one, checks that the test passed, and
/// returns false.
pub fn alone(test: &str) -> bool {
    const ALONE: &str = "TOKIO_DOCA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return true;
    }
    let output = programs::this_program()
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(ALONE, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    false
}

/// Asserts that something took at most `limit`, but only if the variable `TOKIO_DOCA_TEST_QUIET`
/// says that nothing else runs on this machine (`.ci/soak` sets it). Otherwise a test's result must
/// not depend on the machine's speed.
#[track_caller]
pub fn assert_quick(what: &str, took: Duration, limit: Duration) {
    if std::env::var_os("TOKIO_DOCA_TEST_QUIET").is_some() {
        assert!(took <= limit, "{what} took {took:?}, and {limit:?} at most");
    }
}

/// Returns the number of open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of engine threads of software devices in this process.
pub fn engines() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks
        .filter_map(|task| name(task.ok()?).ok())
        .filter(|name| name.starts_with("doca-"))
        .count()
}

/// Returns the number of mapped memfds of Mmaps in this process.
pub fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("memfd:tokio-doca").count()
}

/// Returns the number of free Bufs in a pool.
pub fn free_bufs(pool: &BufPool) -> usize {
    let mut taken = Vec::new();
    while let Ok(buf) = pool.try_alloc() {
        taken.push(buf);
    }
    taken.len()
}

/// Makes a runtime of one thread.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Makes a runtime of two workers.
pub fn workers() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Makes a runtime of one thread, and a counter of its sleeps. The runtime takes I/O events only
/// when it sleeps, never between tasks.
pub fn runtime_that_counts_sleeps() -> (Runtime, Arc<AtomicUsize>) {
    let sleeps = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sleeps);
    let runtime = Builder::new_current_thread()
        .enable_io()
        .event_interval(1 << 30)
        .on_thread_park(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        })
        .build();
    (runtime.unwrap(), sleeps)
}

/// Runs a future on a new runtime of one thread. Panics if it does not end in time.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut output = None;
    run_story(Box::pin(async { output = Some(future.await) }));
    output.expect("the story has ended")
}

/// Runs `story` on a thread of its own, and panics if it does not end in time.
pub fn on_a_thread(what: &'static str, story: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        story();
        // The receiver is gone if the test has given up.
        let _ = ended.send(());
    });
    match end.recv_timeout(LIMIT * programs::slowdown()) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs: {what}"),
        _ => thread.join().expect("the story did not panic"),
    }
}

/// Runs a test's future with the limit [`STORY`]. Not generic, so that it is compiled only once.
fn run_story(story: LocalBoxFuture<'_, ()>) {
    runtime().block_on(within(STORY, "the story", story));
}

/// Runs `story` once per configuration, each on a runtime of its own. Prints the configuration, so
/// that the output shows which one failed.
pub fn each(story: impl AsyncFn(&Bench)) {
    each_of(&configs(), story);
}

/// Runs `story` once per configuration of `configs`.
pub fn each_of(configs: &[Config], story: impl AsyncFn(&Bench)) {
    for &config in configs {
        eprintln!("{config:?}");
        let bench = Bench::new(config);
        run(story(&bench));
    }
}

/// As [`each_of`], but on the adapter if there is one: once per mode. The bench's `soft` then has
/// no effect on the device.
pub fn each_on_any(configs: &[Config], story: impl AsyncFn(&Bench)) {
    if device::adapter().is_none() {
        return each_of(configs, story);
    }
    for &config in configs.iter().filter(|config| config.defer) {
        eprintln!("{config:?}");
        let device = device::under_test(true);
        run(story(&Bench::of(config, Soft::builder().build(), device)));
    }
}

/// Waits until `done` returns true, and panics if that takes too long.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT * programs::slowdown();
    while !done() {
        assert!(Instant::now() < end, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// As [`until`], but blocks the thread.
pub fn block_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT * programs::slowdown();
    while !done() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Awaits a future, and panics if it does not end in time.
pub async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    within(LIMIT, what, future).await
}

/// Spawns a task that yields again and again until the runtime ends. Returns a function that
/// returns how often it has run.
pub fn turns_of_another() -> impl Fn() -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    move || turns.load(Ordering::SeqCst)
}

async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    let mut watchdog = Watchdog::new(limit, what);
    let mut future = pin!(future);
    poll_fn(|cx| {
        let mut polled = Poll::Pending;
        ready!(watchdog.poll(cx, &mut |cx| {
            polled = future.as_mut().poll(cx);
            polled.is_ready()
        }));
        polled
    })
    .await
}

/// Polls a future only if the future's own waker was woken, so that the timer's last poll does not
/// rescue a future whose wake-up was lost. Not generic, which halves the compile time of the tests.
struct Watchdog<'a> {
    what: &'a str,
    timer: Pin<Box<Sleep>>,
    own: Arc<OwnWaker>,
}

struct OwnWaker {
    task: AtomicWaker,
    woken: AtomicBool,
}

impl Wake for OwnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

impl Watchdog<'_> {
    fn new(limit: Duration, what: &str) -> Watchdog<'_> {
        let own = OwnWaker {
            task: AtomicWaker::new(),
            woken: AtomicBool::new(true),
        };
        Watchdog {
            what,
            timer: Box::pin(tokio::time::sleep(limit * programs::slowdown())),
            own: Arc::new(own),
        }
    }

    /// Polls the future, by `is_ready`, if it was woken, and then the timer.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        is_ready: &mut dyn FnMut(&mut Context<'_>) -> bool,
    ) -> Poll<()> {
        self.own.task.register(cx.waker());
        if self.own.woken.swap(false, Ordering::SeqCst) {
            let waker = Waker::from(Arc::clone(&self.own));
            if is_ready(&mut Context::from_waker(&waker)) {
                return Poll::Ready(());
            }
        }
        let timer = self.timer.as_mut().poll(cx);
        assert!(timer.is_pending(), "hangs: {}", self.what);
        Poll::Pending
    }
}

/// Polls once, with a waker that does nothing.
pub fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls once, and checks that the future is pending.
pub fn poll_pending<F: Future<Output: std::fmt::Debug> + ?Sized>(future: Pin<&mut F>) {
    let polled = poll(future);
    assert!(polled.is_pending(), "{polled:?}");
}

/// A waker that counts its wakes.
#[derive(Default)]
pub struct Count(AtomicUsize);

impl Count {
    pub fn new() -> Arc<Count> {
        Arc::default()
    }

    pub fn waker(self: &Arc<Count>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    pub fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that runs a closure.
pub struct Call<F>(pub F);

impl<F: Fn() + Send + Sync + 'static> Call<F> {
    pub fn waker(call: F) -> Waker {
        Waker::from(Arc::new(Call(call)))
    }
}

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        (self.0)();
    }
}

/// Checks that a call failed with an error of this kind, and returns the text of the error.
#[track_caller]
pub fn refused<T>(result: Result<T, impl Into<JobError>>, kind: ErrorKind) -> String {
    let result = result.map_err(Into::into);
    match result {
        Ok(_) => panic!("it was not refused, and should be {kind:?}"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            error.to_string()
        }
    }
}

/// As [`refused`], for calls that return the crate's `Result`.
#[track_caller]
pub fn rejected<T>(result: tokio_doca::Result<T>, kind: ErrorKind) -> String {
    match result {
        Ok(_) => panic!("it was not refused, and should be {kind:?}"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            error.to_string()
        }
    }
}

/// Checks that the text contains all these numbers.
#[track_caller]
pub fn mentions(text: &str, numbers: &[u64]) {
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_digit()).collect();
    for number in numbers {
        let number = number.to_string();
        assert!(
            words.contains(&number.as_str()),
            "{number} is not in: {text}"
        );
    }
}

/// Returns a pattern of bytes that depend on their position and on `seed`.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) | 1)
        .collect()
}

/// Copies the data of a Buf. Works even where the Buf lends no slice.
pub fn bytes(buf: &Buf) -> Vec<u8> {
    let mut out = vec![0; buf.data_len()];
    buf.copy_out(0, &mut out).unwrap();
    out
}

/// Returns the lengths of a Buf: headroom, data, tailroom.
pub fn rooms(buf: &Buf) -> (usize, usize, usize) {
    (buf.headroom(), buf.data_len(), buf.tailroom())
}
