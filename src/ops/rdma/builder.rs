//! [`RdmaBuilder`]: the settings that an [`Rdma`] is built with.

use std::sync::Arc;
use std::time::Duration;

use super::context::RdmaInner;
use super::{Rdma, RecvPool};
use crate::device::{Access, Device, EndpointConfig, Mtu, Path, RdmaCaps, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::context::{Context, contexts};
use crate::reactor::{EndpointPort, WorkQ};

/// The flags that permit operations to a peer.
const REMOTE: Access = Access::RDMA_READ
    .union(Access::RDMA_WRITE)
    .union(Access::RDMA_ATOMIC);

/// The flags for a [`Dma`](crate::Dma), which an Rdma refuses.
const DPU: Access = Access::DPU_READ_ONLY.union(Access::DPU_READ_WRITE);

/// Builds an [`Rdma`].
///
/// ```
/// use std::time::Duration;
/// use tokio_doca::{Device, Rdma, WorkQ, mem::Access};
///
/// # let device = Device::open_default()?;
/// # let workq = WorkQ::builder().build()?;
/// let rdma = Rdma::builder(&device)
///     .permissions(Access::RDMA_READ)                 // what the peer may do
///     .recv_queue_size(100)
///     .rnr_timeout(Duration::from_millis(500))        // how long a send waits for a receive
///     .attach(&workq)?;
/// assert_eq!(rdma.recv_queue_size(), 128);            // a power of two
/// # Ok::<(), tokio_doca::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before attach"]
pub struct RdmaBuilder<'a> {
    device: &'a Device,
    permissions: Access,
    send_queue_size: u32,
    recv_queue_size: u32,
    recv_chain_len: u32,
    mtu: Mtu,
    gid_index: Option<u32>,
    transport: Transport,
    rnr_timeout: Duration,
    connect_timeout: Duration,
    recv_pool: Option<RecvPool>,
}

impl RdmaBuilder<'_> {
    pub(super) fn new(device: &Device) -> RdmaBuilder<'_> {
        RdmaBuilder {
            device,
            permissions: Access::empty(),
            send_queue_size: 64,
            recv_queue_size: 64,
            recv_chain_len: 1,
            mtu: Mtu::default(),
            gid_index: None,
            transport: Transport::default(),
            rnr_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            recv_pool: None,
        }
    }

    /// Sets what the peer may do with memory that was exported to it: any of `RDMA_READ`,
    /// `RDMA_WRITE` and `RDMA_ATOMIC`. Defaults to none of them. Local flags are ignored.
    ///
    /// On the software device the peer's process checks these permissions itself. So a hostile
    /// process that has the blob of an Mmap can do all that the Mmap's own access flags allow.
    #[doc(alias = "doca_rdma_set_permissions")]
    pub fn permissions(mut self, access: Access) -> Self {
        self.permissions = access;
        self
    }

    /// Sets how many jobs the device works on at once. Defaults to 64. The number is rounded up to
    /// a power of two. The depth of the WorkQ limits how many jobs are in flight in all.
    #[doc(alias = "doca_rdma_set_send_queue_size")]
    pub fn send_queue_size(mut self, jobs: u32) -> Self {
        self.send_queue_size = jobs;
        self
    }

    /// Sets how many receives can be posted at once. Defaults to 64. The number is rounded up to a
    /// power of two. Each receive takes about 150 bytes of memory, besides its buffer.
    #[doc(alias = "doca_rdma_set_recv_queue_size")]
    pub fn recv_queue_size(mut self, receives: u32) -> Self {
        self.recv_queue_size = receives;
        self
    }

    /// Receives messages from a pool that several Rdmas share: see [`RecvPool`]. [`Rdma::messages`]
    /// returns the messages; [`Rdma::recv`] and [`Rdma::recv_stream`] are refused, and
    /// [`recv_queue_size`](Self::recv_queue_size) has no effect.
    #[doc(alias = "ibv_srq")]
    pub fn recv_pool(mut self, pool: &RecvPool) -> Self {
        self.recv_pool = Some(pool.clone());
        self
    }

    /// Sets how many Bufs the destination of a receive may have. Defaults to 1.
    #[doc(alias = "doca_rdma_set_recv_buf_chain_len")]
    #[doc(alias = "doca_rdma_task_receive_set_dst_buf_list_len")]
    pub fn recv_chain_len(mut self, bufs: u32) -> Self {
        self.recv_chain_len = bufs;
        self
    }

    /// Sets the largest payload of a packet. Defaults to 1,024 bytes. A connection uses the smaller
    /// value of its two sides.
    #[doc(alias = "doca_rdma_set_mtu")]
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the index of the address that this side uses, in the port's table of addresses (GIDs).
    /// Defaults to `None`: the device chooses. On InfiniBand it takes the first address. On
    /// Ethernet, once the peer's address is known, it prefers an address of the peer's subnet, and
    /// then of the peer's family (IPv4 or IPv6). Among several, or before the peer is known, it
    /// prefers in this order: the [`source`](Transport::source); an address that a network device
    /// of this container has; a routed address to a link-local one (169.254/16, fe80::/10); RoCE v2
    /// to v1; and IPv4. [`Rdma::path`] returns the address that is used.
    #[doc(alias = "doca_rdma_set_gid_index")]
    pub fn gid_index(mut self, index: impl Into<Option<u32>>) -> Self {
        self.gid_index = index.into();
        self
    }

    /// Sets how packets travel: traffic class, service level, partition, address, acknowledgements,
    /// probes, data inside requests. Each [field](Transport) documents its default, and when to
    /// change it.
    ///
    /// ```
    /// use tokio_doca::rdma::Transport;
    ///
    /// let mut transport = Transport::default();
    /// transport.traffic_class = 26 << 2; // DSCP 26
    /// ```
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets how long a job waits for a peer that has no receive posted, or does not answer, before
    /// it fails. Defaults to 2 s. On an adapter the job may fail up to 1 s later, or 2 s later if
    /// `timeout` exceeds 4 s. A long message has more time: what its bytes take at 4 MB/s.
    ///
    /// On an adapter, operations that take no receive (reads, writes without immediates, atomics)
    /// have about 8 s more, and what their bytes take at 64 KB/s. That longer limit only ends
    /// operations whose peer asks for retries forever.
    #[doc(alias = "doca_rdma_set_rnr_retry_count")]
    #[doc(alias = "doca_rdma_get_rnr_retry_count")]
    pub fn rnr_timeout(mut self, timeout: Duration) -> Self {
        self.rnr_timeout = timeout;
        self
    }

    /// Sets how long an attempt to connect may take. Defaults to 5 s.
    /// [`Connect::timeout`](super::Connect::timeout) sets the limit of a single attempt.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Attaches the context to a WorkQ, in the state [`Init`](crate::rdma::RdmaState::Init), and
    /// allocates its table of receives.
    ///
    /// # Errors
    ///
    /// - `NotSupported` if the device has no remote operations, no queues or lists of the sizes
    ///   that were set, or no network for the [`transport`](Self::transport); if it cannot receive
    ///   from a [`RecvPool`], or the pool's elements are longer than it takes; or if it cannot
    ///   signal an event-driven WorkQ.
    /// - `InvalidValue` for a DPU permission, a size of 0, an address or a partition that the port
    ///   does not have, both a `gid_index` and an address in the `transport`, a field of the
    ///   `transport` that is out of its range, or a WorkQ that is deeper than the device allows.
    /// - `BadState` if the WorkQ was shut down.
    /// - `Full` if the WorkQ already has 8 devices, or 4,094 Rdmas and sync events.
    #[doc(alias = "doca_ctx_start")]
    #[doc(alias = "doca_ctx_workq_add")]
    pub fn attach(self, workq: &WorkQ) -> Result<Rdma> {
        let check = |caps: &RdmaCaps| self.check(caps);
        let open = |at: &mut _, (send_queue_size, recv_queue_size)| {
            let config = EndpointConfig {
                permissions: self.permissions & REMOTE,
                send_queue_size,
                recv_queue_size,
                recv_list_len: self.recv_chain_len,
                mtu: self.mtu,
                gid_index: self.gid_index,
                transport: self.transport,
                rnr_timeout: self.rnr_timeout,
                pooled_len: self
                    .recv_pool
                    .as_ref()
                    .map(|pool| pool.bufs().element_size()),
                ..EndpointConfig::new(Arc::new(|| ()))
            };
            Ok(RdmaInner {
                port: EndpointPort::open(at, config)?,
                permissions: self.permissions & REMOTE,
                send_queue_size,
                recv_queue_size,
                recv_chain_len: self.recv_chain_len,
                mtu: self.mtu,
                gid_index: self.gid_index,
                rnr_timeout: self.rnr_timeout,
                connect_timeout: self.connect_timeout,
                recv_pool: self.recv_pool.clone(),
            })
        };
        Context::attach_with(self.device, workq, check, open).map(Rdma)
    }

    /// Returns the error that [`attach`](Self::attach) would return for the capabilities of
    /// `device`. Errors that only the device itself can find, and a lack of remote operations, are
    /// left to `attach`.
    pub(crate) fn check_on(&self, device: &Device) -> Result<()> {
        match &device.info().caps().rdma {
            Some(caps) => self.check(caps).map(drop),
            None => Ok(()),
        }
    }

    fn check(&self, caps: &RdmaCaps) -> Result<(u32, u32)> {
        let error = |kind, text: String| Error::new(kind, None, text);
        let unknown = !Access::all().contains(self.permissions);
        if unknown || self.permissions.intersects(DPU) {
            let text = "the permissions of an Rdma are RDMA_READ, RDMA_WRITE and RDMA_ATOMIC";
            return Err(error(ErrorKind::InvalidValue, text.to_owned()));
        }
        if let Some(index) = self.gid_index.filter(|&index| index >= caps.gid_table_size) {
            let text = format!(
                "GID index {index}, and the port has {} addresses",
                caps.gid_table_size
            );
            return Err(error(ErrorKind::InvalidValue, text));
        }
        let within = |what, have: u32, rounded: Option<u32>, limit: u32| match rounded {
            _ if have == 0 => Err(error(ErrorKind::InvalidValue, format!("a {what} of 0"))),
            Some(rounded) if rounded <= limit => Ok(rounded),
            _ => {
                let text = format!("a {what} of {have}, and the device takes {limit}");
                Err(error(ErrorKind::NotSupported, text))
            }
        };
        let size =
            |what, have: u32, limit| within(what, have, have.checked_next_power_of_two(), limit);
        let chain = self.recv_chain_len;
        within("recv_chain_len", chain, Some(chain), caps.max_recv_list_len)?;
        self.check_pool(caps)?;
        self.check_transport(caps)?;
        // A receive is identified by the index of a Token, which has 20 bits.
        let receives = caps.max_recv_queue_size.min(1 << 20);
        Ok((
            size(
                "send_queue_size",
                self.send_queue_size,
                caps.max_send_queue_size,
            )?,
            match &self.recv_pool {
                Some(pool) => size("RecvPool::credits", pool.credits_per_connection(), receives)?,
                None => size("recv_queue_size", self.recv_queue_size, receives)?,
            },
        ))
    }

    /// Returns an error if the [`Transport`] that was set is invalid, or the device does not have
    /// it.
    fn check_transport(&self, caps: &RdmaCaps) -> Result<()> {
        self.transport.check()?;
        if self.transport != Transport::default() && !caps.transport {
            let text = "the device has no network, and takes only the default Transport: leave \
                        transport() out, or open an adapter";
            return Err(Error::new(ErrorKind::NotSupported, None, text));
        }
        let (index, size) = (self.transport.pkey_index, caps.pkey_table_size);
        if u32::from(index) >= size {
            let text = format!("a pkey_index of {index}, and the port has {size} partition keys");
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        if self.transport.gid.is_some() && self.gid_index.is_some() {
            let text = "both a gid_index and the address of a Transport: leave one out";
            return Err(Error::new(ErrorKind::InvalidValue, None, text));
        }
        Ok(())
    }

    /// Returns an error if the device cannot receive from the [`RecvPool`] that was set.
    fn check_pool(&self, caps: &RdmaCaps) -> Result<()> {
        let Some(pool) = &self.recv_pool else {
            return Ok(());
        };
        let (have, limit) = (pool.bufs().element_size(), caps.max_pooled_len);
        let text = match limit {
            0 => "the device receives from no pool: leave recv_pool() out, and use \
                  Rdma::recv_stream()"
                .to_owned(),
            _ if have <= limit => return Ok(()),
            _ => format!("a RecvPool of elements of {have} bytes, and the device takes {limit}"),
        };
        Err(Error::new(ErrorKind::NotSupported, None, text))
    }
}

/// The settings that the Rdma was built with.
impl Rdma {
    /// Returns what the peer may do with exported memory: the RDMA flags that the builder has set.
    #[doc(alias = "doca_rdma_get_permissions")]
    pub fn permissions(&self) -> Access {
        self.0.extra().permissions
    }

    /// Returns the maximum number of jobs that the device works on at once: a power of two.
    #[doc(alias = "doca_rdma_get_send_queue_size")]
    pub fn send_queue_size(&self) -> u32 {
        self.0.extra().send_queue_size
    }

    /// Returns how many receives can be posted at once: a power of two. With a [`RecvPool`], this
    /// is the number of the peer's credits.
    #[doc(alias = "doca_rdma_get_recv_queue_size")]
    pub fn recv_queue_size(&self) -> u32 {
        self.0.extra().recv_queue_size
    }

    /// Returns how many Bufs the destination of a receive may have.
    #[doc(alias = "doca_rdma_get_recv_buf_chain_len")]
    #[doc(alias = "doca_rdma_task_receive_get_dst_buf_list_len")]
    pub fn recv_chain_len(&self) -> u32 {
        self.0.extra().recv_chain_len
    }

    /// Returns the largest payload of a packet, as set by the builder. A connection uses the
    /// smaller value of its two sides.
    #[doc(alias = "doca_rdma_get_mtu")]
    pub fn mtu(&self) -> Mtu {
        self.0.extra().mtu
    }

    /// Returns the index of the port's address (GID), if the builder has set one.
    #[doc(alias = "doca_rdma_get_gid_index")]
    pub fn gid_index(&self) -> Option<u32> {
        self.0.extra().gid_index
    }

    /// Returns how packets travel. The time for acknowledgements and the size of inline data are
    /// those that the device uses.
    pub fn transport(&self) -> Transport {
        self.port().transport()
    }

    /// Returns the path to the peer: both addresses, and the maximum payload of a packet. Returns
    /// `None` before the connection, and on a device without a network. The path is kept until the
    /// next [`reset`](Rdma::reset).
    pub fn path(&self) -> Option<Path> {
        self.port().path()
    }

    /// Returns how long a job waits for a peer that has no receive posted, or does not answer,
    /// before it fails.
    pub fn rnr_timeout(&self) -> Duration {
        self.0.extra().rnr_timeout
    }

    /// Returns the [`RecvPool`] from which messages are received, if the builder has set one.
    pub fn recv_pool(&self) -> Option<&RecvPool> {
        self.0.extra().recv_pool.as_ref()
    }
}

contexts! {
    /// Returns the limits of the device.
    Rdma: RdmaCaps
}
