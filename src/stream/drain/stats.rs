//! The counters of a listener: what became of its peers. Peers come one by one, off the data path.

/// Counts of the peers of an [`RdmaListener`](crate::stream::RdmaListener), as returned by
/// [`RdmaListener::stats`](crate::stream::RdmaListener::stats).
///
/// While peers come or go, the numbers may contradict each other.
///
/// ```
/// # use std::net::SocketAddr;
/// # use tokio_doca::{Device, WorkQ, stream::StreamOptions};
/// use tokio_doca::stream::ListenerStats;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// # let options = StreamOptions::new().connections(1);
/// # let listener = options.bind(&device, &workq, "127.0.0.1:0".parse::<SocketAddr>()?).await?;
/// # let addr = listener.tcp_addr().expect("it listens at a TCP address");
/// # let connector = options.connector(&device, &workq)?;
/// let accept = async { listener.accept().await?.accept(b"").await };
/// let streams = tokio::try_join!(connector.connect(addr), accept)?;
/// let stats: ListenerStats = listener.stats();
/// assert_eq!((stats.accepted, stats.open, stats.full), (1, 1, 0));
/// # drop(streams);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// The number of streams that [`Incoming::accept`](crate::stream::Incoming::accept) has
    /// returned.
    pub accepted: u64,
    /// The number of streams for which [`RdmaListener::drain`](crate::stream::RdmaListener::drain)
    /// would wait: streams of `accepted` that are not closed, also while they
    /// [linger](crate::stream::StreamOptions::linger), and streams that an `accept` is about to
    /// return.
    pub open: u64,
    /// The number of `accepted` streams that continue over TCP
    /// ([`StreamOptions::or_tcp`](crate::stream::StreamOptions::or_tcp)).
    pub fell_back: u64,
    /// The number of peers that the application has refused, or whose `Incoming` or future of
    /// `accept` it has dropped.
    pub refused: u64,
    /// The number of peers that were not accepted because all memory for
    /// [`connections`](crate::stream::StreamOptions::connections) streams was in use.
    pub full: u64,
    /// The number of peers that took longer than the
    /// [`timeout`](crate::stream::StreamOptions::timeout), or that were dropped while silent, in
    /// favour of a new peer: after 100 ms of silence
    /// ([`half_open`](crate::stream::StreamOptions::half_open)), or at once if the system had no
    /// descriptor or memory for the new peer.
    pub timed_out: u64,
    /// The number of peers whose `accept` failed for a reason that no other field counts, for
    /// example because the peer gave up or the listener drains.
    pub failed: u64,
    /// The number of peers that closed their connection without a hello, or sent something else.
    /// The hello is the first message of a connector.
    pub strangers: u64,
    /// The number of peers that are connected and have not sent their whole hello yet: at most
    /// [`half_open`](crate::stream::StreamOptions::half_open).
    pub half_open: u64,
}
