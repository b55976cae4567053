//! Connections by rdma_cm, on the adapter; the fake adapters have the same stories
//! (`tests/verbs/cm.rs`).

use support::both_sides::Side;
use support::cm::{self, Place};
use support::run;
use tokio_doca::rdma::CmListener;
use tokio_doca::soft::Soft;
use tokio_doca::{ErrorKind, Mode};

macro_rules! stories {
    ($($name:ident)*) => {$(
        #[test]
        #[ignore = "needs DOCA_VERBS_DEVICE"]
        fn $name() {
            run(cm::$name(&Place::of_adapter()));
        }
    )*};
}

stories! {
    two_sides_meet an_end_is_heard a_refusal_says_why private_data_have_limits
    a_foreign_peer_is_said_to_be_one an_attempt_can_be_given_up
}

#[tokio::test]
async fn the_software_device_says_that_it_has_none() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let addr = "127.0.0.1:7471".parse().unwrap();
    let error = CmListener::bind(&device, addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("rdma_cm"), "{error}");
    let side = Side::new(&device, Mode::EventDriven);
    let error = side.rdma.connect_to(addr).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("Rdma::connect"), "{error}");
}
