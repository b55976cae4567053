//! Connections by rdma_cm on the adapter; the fake adapters run the same tests
//! (`tests/verbs/cm.rs`).

use support::both_sides::Side;
use support::cm::{self, Place};
use support::run;
use tokio_doca::rdma::CmListener;
use tokio_doca::soft::Soft;
use tokio_doca::stream::{StreamAddr, StreamOptions};
use tokio_doca::{ErrorKind, Mode, WorkQ};

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
    two_sides_meet an_idle_connection_stays an_end_is_heard a_refusal_says_why private_data_have_limits
    a_foreign_peer_is_said_to_be_one an_attempt_can_be_given_up a_pool_receives_in_both_roles
    streams_meet streams_end streams_are_refused streams_go_on_by_tcp
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn sides_and_streams_meet_by_ipv6() {
    let Some(place) = Place::of_ipv6() else {
        println!("not run: the adapter has no IPv6 address for more than one link");
        return;
    };
    run(async {
        cm::two_sides_meet(&place).await;
        cm::an_end_is_heard(&place).await;
        cm::streams_meet(&place).await;
    });
}

#[tokio::test]
async fn the_software_device_says_that_it_has_none() {
    let device = Soft::builder().build().open("pf0").unwrap();
    let addr = "127.0.0.1:7471".parse().unwrap();
    let error = CmListener::bind(&device, addr).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("rdma_cm"), "{error}");
    let (options, workq) = (StreamOptions::new(), WorkQ::builder().build().unwrap());
    let bound = options.bind(&device, &workq, StreamAddr::Cm(addr)).await;
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::NotSupported);
    let connector = options.connector(&device, &workq).unwrap();
    let error = connector.connect(StreamAddr::Cm(addr)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    // If TCP is allowed too, both sides use the same port number for it.
    let options = options.or_tcp(true);
    let any = StreamAddr::Cm("127.0.0.1:0".parse().unwrap());
    let listener = options.bind(&device, &workq, any).await.unwrap();
    let at = listener.local_addr().clone();
    assert!(matches!(at, StreamAddr::Cm(addr) if Some(addr) == listener.tcp_addr()));
    let connector = options.connector(&device, &workq).unwrap();
    let accept = async { listener.accept().await?.accept(b"").await };
    let (mut a, mut b) = tokio::try_join!(connector.connect(at), accept).unwrap();
    support::stream::crosses(&mut a, &mut b).await;
    let side = Side::new(&device, Mode::EventDriven);
    let error = side.rdma.connect_to(addr).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("Rdma::connect"), "{error}");
}
