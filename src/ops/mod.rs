//! The operations that a user awaits, and the contexts that make them.

mod accel;
mod context;
pub mod crc;
mod dma;
pub mod graph;
mod op;
mod operation;
mod output;
mod rdma;
mod refused;
mod sha;
mod sync_event;

pub use accel::{Accel, AccelBuilder, AccelCall, AccelOp};
pub use dma::{Dma, DmaBuilder, DmaCopy};
pub use op::Answer;
pub use operation::{Op, Operation, Started, StartedAll};
pub use output::Output;
pub(crate) use rdma::Sends;
pub use rdma::{
    CmAccept, CmListener, CmRequest, Connect, ConnectTo, Message, Rdma, RdmaBuilder, RdmaOp,
    RdmaRecv, RdmaStats, RecvPool, RecvStream, SendSink,
};
pub use refused::Refused;
pub use sha::{Sha, ShaBuilder, ShaOp, ShaSession};
pub use sync_event::{
    BlockingSyncEvent, ImportedSyncEvent, Location, SyncEvent, SyncEventBuilder, SyncEventImport,
    SyncEventOp, SyncEventWait,
};
