//! A WorkQ and its contexts: what is refused when they are built, attached and detached.

use support::*;
use tokio_doca::soft::{Limits, Soft};
use tokio_doca::{Dma, ErrorKind, Mode, WorkQ};

#[test]
fn a_depth_of_none_or_of_too_many_is_refused() {
    for depth in [0, (1 << 20) + 1, u32::MAX] {
        for mode in modes() {
            let result = WorkQ::builder().depth(depth).mode(mode).build();
            mentions(
                &rejected(result, ErrorKind::InvalidValue),
                &[depth.into(), 1 << 20],
            );
        }
    }
    assert_eq!(WorkQ::builder().depth(1).build().unwrap().depth(), 1);
}

#[test]
fn a_context_does_not_attach_to_a_workq_that_was_shut_down() {
    each(async |bench| {
        bench.workq.shutdown().await.unwrap();
        rejected(
            Dma::builder(&bench.device).attach(&bench.workq),
            ErrorKind::BadState,
        );
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        refused(bench.dma.copy(&src, &dst).await, ErrorKind::Shutdown);
        refused(bench.dma.copy(&src, &dst).start(), ErrorKind::Shutdown);
        let other = WorkQ::builder().mode(bench.config.mode).build().unwrap();
        let dma = bench.dma.attach(&other).unwrap();
        assert_eq!(dma.copy(&src, &dst).await, Ok(3));
    });
}

#[test]
fn a_ninth_device_does_not_fit_on_a_workq() {
    let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
    let softs: Vec<_> = (0..9).map(|_| Soft::builder().build()).collect();
    let devices: Vec<_> = softs.iter().map(|s| s.open("pf0").unwrap()).collect();
    let attached: Vec<_> = devices[..8]
        .iter()
        .map(|device| Dma::builder(device).attach(&workq).unwrap())
        .collect();
    mentions(
        &rejected(Dma::builder(&devices[8]).attach(&workq), ErrorKind::Full),
        &[8],
    );
    for device in &devices[..8] {
        Dma::builder(device).attach(&workq).unwrap();
    }
    drop(attached);
}

#[test]
fn detach_is_refused_while_a_clone_has_the_attachment() {
    let bench = Bench::new(configs()[0]);
    let (one, two) = (bench.dma.clone(), bench.dma.attach(&bench.workq).unwrap());
    rejected(one.detach(), ErrorKind::InUse);
    two.detach().unwrap();
    let (src, dst) = (bench.filled(b"abc"), bench.empty());
    let future = bench.dma.copy(src, dst).owned();
    let Bench { dma, .. } = bench;
    rejected(dma.detach(), ErrorKind::InUse);
    assert_eq!(run(future), Ok(3));
}

#[test]
fn a_context_that_only_polls_is_refused_on_an_event_driven_workq() {
    let soft = Soft::builder()
        .defer(true)
        .limits(Limits::unlimited().dma_event_driven(false))
        .build();
    let device = soft.open("pf0").unwrap();
    assert!(!device.info().caps().dma.as_ref().unwrap().event_driven);
    let driven = WorkQ::builder().mode(Mode::EventDriven).build().unwrap();
    let attached = Dma::builder(&device).attach(&driven);
    let text = rejected(attached, ErrorKind::NotSupported);
    assert!(text.contains("pf0") && text.contains("BusyPoll"), "{text}");
    // A context that is attached to another WorkQ is refused as well.
    let config = Config::new(true, Mode::BusyPoll);
    let bench = Bench::with_soft(config, soft);
    rejected(bench.dma.attach(&driven), ErrorKind::NotSupported);
    run(bench.works());
}
