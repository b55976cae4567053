//! The handle of a connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::builder::ChannelBuilder;
use super::connection::{ChannelStats, Connection};
use super::peer::Peer;
use crate::device::Device;
use crate::error::Result;

/// A connection for control messages: of a client to its service, or of a service to one of its
/// clients.
///
/// It carries messages of up to 4,080 bytes, whole and in order. [`Channel::builder`] makes clients
/// and services. Clones are handles on the same connection. After the last handle was dropped, the
/// connection ends once all messages that were sent before have been written, however long the peer
/// takes to read them.
///
/// # The runtime of a connection
///
/// A connection belongs to the Tokio runtime on which it was made. A task of that runtime writes
/// the messages that the socket does not take at once. If the runtime ends first, those messages
/// are lost, and the connection ends. A program that sends and then returns from `main` should
/// await [`flush`](Channel::flush) or [`disconnect`](Channel::disconnect) first.
///
/// ```
/// use tokio_doca::soft::{Soft, View};
/// use tokio_doca::{channel::Channel, device::Representor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_doca::Error> {
/// // On the DPU, a service on the representor of the host's pf0:
/// let p0 = Soft::builder().view(View::Dpu).build().open("p0")?;
/// # let name = format!("doc {}", std::process::id());
/// # let name = &name[..];
/// # /*
/// let name = "answers";
/// # */
/// let service = Channel::builder().listen(&Representor::open(&p0, "0b:00.0")?, name)?;
/// let serve = async {
///     let client = service.accept().await?;
///     let question = client.recv().await?;
///     client.send(&[b"what is ", &question[..]].concat()).await
/// };
/// // On the host, in another process:
/// let pf0 = Soft::builder().build().open("pf0")?;
/// let ask = async {
///     let channel = Channel::builder().connect(&pf0, name).await?;
///     channel.send(b"that?").await?;
///     channel.recv().await
/// };
/// let (answer, served) = tokio::join!(ask, serve);
/// # served?;
/// assert_eq!(answer?, "what is that?");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "doca_comm_channel_ep_t")]
#[doc(alias = "doca_comch_client")]
#[doc(alias = "doca_comch_server")]
#[doc(alias = "doca_comch_connection")]
pub struct Channel(pub(super) Arc<Connection>);

impl Channel {
    /// The maximum size of a message, in bytes.
    #[doc(alias = "doca_comm_channel_get_max_message_size")]
    #[doc(alias = "doca_comch_cap_get_max_msg_size")]
    pub const MAX_MESSAGE_SIZE: usize = 4080;
    /// The maximum length of a send or receive queue, in messages.
    #[doc(alias = "doca_comm_channel_get_max_send_queue_size")]
    #[doc(alias = "doca_comm_channel_get_max_recv_queue_size")]
    #[doc(alias = "doca_comch_cap_get_max_send_tasks")]
    #[doc(alias = "doca_comch_cap_get_max_recv_queue_size")]
    pub const MAX_QUEUE_SIZE: usize = 8192;
    /// The maximum length of a service's name, in bytes.
    #[doc(alias = "doca_comm_channel_get_max_service_name_len")]
    #[doc(alias = "doca_comch_cap_get_max_name_len")]
    pub const MAX_SERVICE_NAME_LEN: usize = super::greeting::NAME_MAX;

    /// Returns a builder of a service or a client.
    #[doc(alias = "doca_comm_channel_ep_create")]
    #[doc(alias = "doca_comch_client_create")]
    #[doc(alias = "doca_comch_server_create")]
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder::new()
    }

    /// Sends a message. If the send queue is full, waits until a message has left it. A message
    /// that was sent may still be waiting to be written: [`flush`](Channel::flush) waits for that.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for a message that is longer than
    /// [`max_message_size`](Channel::max_message_size); `ConnectionReset` if the peer has gone;
    /// `NotConnected` after [`disconnect`](Channel::disconnect); `Shutdown` if the runtime on which
    /// the connection was made has ended.
    ///
    /// # Cancel safety
    ///
    /// A message is sent as a whole or not at all: if the future is dropped before it is ready, the
    /// message was not sent.
    #[doc(alias = "doca_comm_channel_ep_sendto")]
    #[doc(alias = "doca_comch_client_task_send_alloc_init")]
    #[doc(alias = "doca_comch_server_task_send_alloc_init")]
    pub async fn send(&self, message: &[u8]) -> Result<()> {
        self.0.send(message).await
    }

    /// Sends a message if the send queue can take it now.
    ///
    /// # Errors
    ///
    /// `Again` if the send queue is full; otherwise as [`send`](Channel::send).
    pub fn try_send(&self, message: &[u8]) -> Result<()> {
        let sent = self.0.try_send(message);
        sent.map_err(|error| error.with_call("Channel::try_send"))
    }

    /// Waits until all messages that were sent before have been written to the socket. The peer
    /// receives them even if this process or its runtime ends then. The call does not wait for
    /// sends that begin meanwhile.
    ///
    /// # Errors
    ///
    /// The error of [`send`](Channel::send) if the connection has ended: messages may be lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait, and has no other effect. If the peer does not read,
    /// `flush` waits for ever.
    pub async fn flush(&self) -> Result<()> {
        self.0.flush().await
    }

    /// Returns the next message. If several receives wait at once, they get messages in the order
    /// in which they began to wait. A receive that is not polled is skipped.
    ///
    /// # Errors
    ///
    /// `ConnectionReset` if the peer broke the protocol, or has gone and all its messages were
    /// received; `NotConnected` and `Shutdown` as [`send`](Channel::send).
    ///
    /// # Cancel safety
    ///
    /// No message is lost: a message that has come in part stays for the next receive.
    #[doc(alias = "doca_comm_channel_ep_recvfrom")]
    #[doc(alias = "doca_comch_client_event_msg_recv_register")]
    #[doc(alias = "doca_comch_server_event_msg_recv_register")]
    pub async fn recv(&self) -> Result<Bytes> {
        self.0.recv().await
    }

    /// Returns the next message, if it has come.
    ///
    /// # Errors
    ///
    /// `Again` if no message has come, or another receive waits for one; otherwise as
    /// [`recv`](Channel::recv).
    pub fn try_recv(&self) -> Result<Bytes> {
        let received = self.0.try_recv();
        received.map_err(|error| error.with_call("Channel::try_recv"))
    }

    /// Ends the connection, for all its handles, once everything that was sent before has been
    /// written. If the connection has ended already, does nothing.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the connection continues. If the peer does not
    /// read, `disconnect` waits for ever; [`abort`](Channel::abort) does not wait.
    #[doc(alias = "doca_comm_channel_ep_disconnect")]
    #[doc(alias = "doca_comch_server_disconnect")]
    pub async fn disconnect(&self) {
        self.0.disconnect().await;
    }

    /// Ends the connection now, for all its handles. Messages that are not written yet, or the
    /// unwritten part of a message, are lost. If the connection has ended already, does nothing.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Returns false once this side has noticed that the connection ended. Only sends, receives,
    /// and the task that writes waiting messages notice this.
    #[doc(alias = "doca_comm_channel_peer_addr_update_info")]
    #[doc(alias = "doca_comch_connection_update_info")]
    pub fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// Returns the device that the Channel was connected with or, if a service accepted the
    /// Channel, the device of the service.
    #[doc(alias = "doca_comm_channel_ep_get_device")]
    #[doc(alias = "doca_comch_client_get_device")]
    #[doc(alias = "doca_comch_server_get_device")]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the peer at the other end.
    pub fn peer(&self) -> &Peer {
        self.0.peer()
    }

    /// Returns the maximum size of a message on this connection, in bytes: the smaller value of its
    /// two sides.
    #[doc(alias = "doca_comm_channel_ep_get_max_msg_size")]
    #[doc(alias = "doca_comch_client_get_max_msg_size")]
    #[doc(alias = "doca_comch_server_get_max_msg_size")]
    pub fn max_message_size(&self) -> usize {
        self.0.max_message()
    }

    /// Returns counts of the messages and bytes so far.
    #[doc(alias = "doca_comm_channel_peer_addr_get_send_messages")]
    #[doc(alias = "doca_comm_channel_peer_addr_get_recv_messages")]
    pub fn stats(&self) -> ChannelStats {
        self.0.stats()
    }

    /// Returns the number that the application has set for this peer, or 0.
    #[doc(alias = "doca_comm_channel_peer_addr_get_user_data")]
    #[doc(alias = "doca_comch_connection_get_user_data")]
    pub fn user_data(&self) -> u64 {
        self.0.user_data.load(Relaxed)
    }

    /// Sets the application's number for this peer.
    #[doc(alias = "doca_comm_channel_peer_addr_set_user_data")]
    #[doc(alias = "doca_comch_connection_set_user_data")]
    pub fn set_user_data(&self, value: u64) {
        self.0.user_data.store(value, Relaxed);
    }
}

impl PartialEq for Channel {
    fn eq(&self, other: &Channel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("peer", self.peer())
            .field("connected", &self.is_connected())
            .finish()
    }
}
