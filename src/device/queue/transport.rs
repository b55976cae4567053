//! How the packets of a connection travel.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::endpoint::Mtu;
use crate::error::{Error, ErrorKind, Result};

/// Settings for the packets of a connection between adapters. The defaults are right for most
/// networks.
///
/// A device without a network (the software device) takes only the default
/// ([`RdmaCaps::transport`](crate::device::RdmaCaps::transport)).
///
/// ```
/// use std::time::Duration;
/// use tokio_doca::rdma::{Rdma, Transport};
/// # use tokio_doca::{Device, WorkQ};
///
/// # fn attach(device: &Device, workq: &WorkQ) -> tokio_doca::Result<Rdma> {
/// let mut transport = Transport::default();
/// transport.traffic_class = 26 << 2;                          // DSCP 26
/// transport.probe_interval = Some(Duration::from_millis(200));
/// Rdma::builder(device).transport(transport).attach(workq)
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transport {
    /// The traffic class of RoCE packets, 0 to 255: the DSCP times 4. Defaults to 0. Set it where
    /// the switches map a DSCP to a lossless priority.
    pub traffic_class: u8,
    /// The service level, 0 to 15: the virtual lane of InfiniBand, and the priority (0 to 7) of
    /// RoCE packets with a VLAN tag. Defaults to 0.
    #[doc(alias = "doca_rdma_set_sl")]
    #[doc(alias = "doca_rdma_get_sl")]
    pub service_level: u8,
    /// The index into the port's table of partition keys, less than
    /// [`RdmaCaps::pkey_table_size`](crate::device::RdmaCaps::pkey_table_size). Defaults to 0.
    /// Only partitioned InfiniBand networks have more than one.
    pub pkey_index: u16,
    /// The maximum number of routers that a packet may pass, 1 to 255. Defaults to 64. Lower it to
    /// keep packets within a network.
    pub hop_limit: u8,
    /// The address of this side: a GID of the port. An IPv4 address is written as `::ffff:a.b.c.d`.
    /// With `None`, the default, [`gid_index`](crate::rdma::RdmaBuilder::gid_index) or its default
    /// selects the address.
    pub gid: Option<Ipv6Addr>,
    /// The preferred address of this side, in the network by which it found its peer. The
    /// connection uses it if the port has this address and neither `gid` nor a `gid_index` is set.
    /// Defaults to `None`. Streams set it to the address of their TCP connection.
    pub source: Option<IpAddr>,
    /// How long the adapter waits for an acknowledgement before it sends a packet again: 1 ms to 17
    /// s, rounded up to a power of two times 4.096 us. With `None`, the default, the time is at
    /// most 134 ms, and short enough that a silent peer is given up within
    /// [`rnr_timeout`](crate::rdma::RdmaBuilder::rnr_timeout). Adapters may wait up to four times
    /// as long. If all tries take longer than the `rnr_timeout`, a silent peer is given up after
    /// the last one.
    pub ack_timeout: Option<Duration>,
    /// The number of times that the adapter sends a packet again before the connection fails, 0 to
    /// 7. Defaults to 6. Raise `ack_timeout` rather than this on a network that stalls.
    pub retry_count: u8,
    /// The interval at which an idle connection probes whether its peer is alive: 10 ms to 60 s.
    /// Defaults to 1 s. With `None`, a side that only waits never notices that its peer has died. A
    /// dead peer is noticed within this interval plus the time of all tries, which is `ack_timeout`
    /// times (`retry_count` + 1); adapters may take four times as long for the tries. After a job
    /// or a message, the first probe may be up to 1 s later. Lower the interval if a second
    /// matters, and raise it for thousands of idle connections. Peers that do not use this library
    /// are not probed. Over iWARP, whose transport never gives up a peer, a probe may take twice
    /// the time of the tries.
    pub probe_interval: Option<Duration>,
    /// The maximum number of bytes of a send or write that travel inside the request, so that the
    /// adapter need not fetch them. Defaults to 128. The value is halved until the adapter accepts
    /// it.
    pub inline_size: u32,
}

/// How a connection reaches its peer over a network: the result of
/// [`Rdma::path`](crate::Rdma::path).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// The address of this side's port (its GID). An IPv4 address is written as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
    /// The peer's address.
    pub peer_gid: Ipv6Addr,
    /// The maximum payload of a packet: the smaller of the two sides' values.
    pub mtu: Mtu,
}

impl Path {
    /// Returns a path from the first address to the second one.
    pub fn new(gid: Ipv6Addr, peer_gid: Ipv6Addr, mtu: Mtu) -> Path {
        Path { gid, peer_gid, mtu }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [here, there] = [self.gid, self.peer_gid].map(|gid| IpAddr::from(gid).to_canonical());
        let mtu = self.mtu.bytes();
        write!(f, "{here} to {there}, with packets of {mtu} bytes")
    }
}

impl Default for Transport {
    fn default() -> Transport {
        Transport {
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            hop_limit: 64,
            gid: None,
            source: None,
            ack_timeout: None,
            retry_count: 6,
            probe_interval: Some(Duration::from_secs(1)),
            inline_size: 128,
        }
    }
}

impl Transport {
    /// The valid range of `ack_timeout`.
    const ACK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(17);

    /// The minimum and maximum of `probe_interval`.
    const PROBE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(60)];

    /// Checks that all settings are within the ranges that networks have.
    pub(crate) fn check(&self) -> Result<()> {
        let text = if self.service_level > 15 {
            format!(
                "a service_level of {}, and there are 0 to 15",
                self.service_level
            )
        } else if self.hop_limit == 0 {
            "a hop_limit of 0, with which no packet arrives: it is 1 to 255".to_owned()
        } else if self.retry_count > 7 {
            format!(
                "a retry_count of {}, and an adapter counts to 7",
                self.retry_count
            )
        } else if let Some(time) = self.ack_timeout
            && !Transport::ACK.contains(&time)
        {
            format!("an ack_timeout of {time:?}: it is 1 ms to 17 s")
        } else if let Some(time) = self.probe_interval
            && !(Transport::PROBE[0]..=Transport::PROBE[1]).contains(&time)
        {
            format!("a probe_interval of {time:?}: it is 10 ms to 60 s, or None for no probes")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidValue, None, text))
    }
}
