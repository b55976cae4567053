//! N9: how much `bind` delays a timer of a millisecond on the same thread. The listener has the
//! default options; the baseline is the timer beside a task that does nothing.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::time::sleep;
use tokio_doca::WorkQ;
use tokio_doca::soft::Soft;
use tokio_doca::stream::StreamOptions;

use super::report::Goal::AtMost;
use super::report::Report;

/// How long the timer also runs before and after the measured work.
const AROUND: Duration = Duration::from_millis(20);
const RUNS: usize = 3;

/// Returns the greatest lateness of a timer of a millisecond beside `work`.
async fn lateness(work: impl Future) -> Duration {
    let ends = Cell::new(false);
    let timer = async {
        let mut worst = Duration::ZERO;
        let tick = Duration::from_millis(1);
        while !ends.get() {
            let begun = Instant::now();
            sleep(tick).await;
            worst = worst.max(begun.elapsed() - tick);
        }
        worst
    };
    let work = async {
        sleep(AROUND).await;
        let made = work.await;
        sleep(AROUND).await;
        ends.set(true);
        made
    };
    // The output of `work` is dropped after the timer has ended.
    let (worst, _made) = tokio::join!(timer, work);
    worst
}

pub(crate) fn n9(report: &mut Report) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let worst = runtime.expect("a runtime").block_on(async {
        let device = Soft::builder().build().open("pf0").expect("a device");
        let workq = WorkQ::builder().build().expect("a WorkQ");
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut worst = 0_f64;
        for _ in 0..RUNS {
            let idle = lateness(sleep(AROUND)).await;
            let bind = async {
                let bound = StreamOptions::new().bind(&device, &workq, addr).await;
                bound.expect("a listener")
            };
            worst = worst.max(millis(lateness(bind).await) - millis(idle));
        }
        worst
    });
    let what = "a timer of 1 ms beside bind, later than beside an idle task; the worst of 3";
    report.line("N9", worst, AtMost(5.0), "ms", what);
}
