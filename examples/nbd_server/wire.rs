//! The constants and the message formats of the NBD protocol (github.com/NetworkBlockDevice/nbd,
//! doc/proto.md). All numbers are big-endian.

use std::io;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncRead, AsyncReadExt};

pub(crate) const MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const OPTION: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST: u32 = 0x2560_9513;
pub(crate) const SIMPLE: u32 = 0x6744_6698;
pub(crate) const STRUCTURED: u32 = 0x668e_33ef;

/// Flags of the server's greeting and of the client's answer.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 2;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
pub(crate) const REP_ERR_INVALID: u32 = 1 << 31 | 3;
pub(crate) const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export, for the requests that it accepts.
pub(crate) const HAS_FLAGS: u16 = 1;
pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const SEND_FLUSH: u16 = 1 << 2;
pub(crate) const SEND_FUA: u16 = 1 << 3;
pub(crate) const SEND_TRIM: u16 = 1 << 5;
pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const SEND_DF: u16 = 1 << 7;
pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;

pub(crate) const FLAG_FUA: u16 = 1;
pub(crate) const FLAG_NO_HOLE: u16 = 1 << 1;
pub(crate) const FLAG_DF: u16 = 1 << 2;

pub(crate) const CHUNK_DONE: u16 = 1;
pub(crate) const CHUNK_NONE: u16 = 0;
pub(crate) const CHUNK_DATA: u16 = 1;
pub(crate) const CHUNK_ERROR: u16 = 1 << 15 | 1;

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// The maximum number of bytes of a read or write, and of an option.
pub(crate) const MAX_PAYLOAD: u32 = 32 << 20;
pub(crate) const MAX_OPTION: u32 = 8 << 10;

/// A request of a client that has an export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// A number that the client has chosen for the request.
    pub(crate) cookie: u64,
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl Request {
    const LEN: usize = 28;

    /// Reads the next request.
    pub(crate) async fn read<R: AsyncRead + Unpin>(from: &mut R) -> io::Result<Request> {
        let mut bytes = [0; Request::LEN];
        from.read_exact(&mut bytes).await?;
        let mut fields = &bytes[..];
        if fields.get_u32() != REQUEST {
            return Err(nonsense("what it sent is no request"));
        }
        Ok(Request {
            flags: fields.get_u16(),
            command: fields.get_u16(),
            cookie: fields.get_u64(),
            at: fields.get_u64(),
            len: fields.get_u32(),
        })
    }
}

/// Builds a simple reply, for any request but a read, or for a read without structured replies.
pub(crate) fn simple(cookie: u64, error: u32) -> Vec<u8> {
    let mut reply = Vec::with_capacity(16);
    reply.put_u32(SIMPLE);
    reply.put_u32(error);
    reply.put_u64(cookie);
    reply
}

/// The head of the only chunk of a structured reply, whose payload has `len` bytes.
pub(crate) fn chunk(cookie: u64, kind: u16, len: u32) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(32);
    chunk.put_u32(STRUCTURED);
    chunk.put_u16(CHUNK_DONE);
    chunk.put_u16(kind);
    chunk.put_u64(cookie);
    chunk.put_u32(len);
    chunk
}

pub(crate) fn nonsense(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
