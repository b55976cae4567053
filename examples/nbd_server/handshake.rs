//! The fixed newstyle handshake: a client asks for options until it has the export, or leaves.

use std::io;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::disk::Disk;
use super::wire::*;

/// The maximum number of options that a client may send.
const OPTIONS: usize = 64;

/// The outcome of the negotiation between a client and the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) structured: bool,
    no_zeroes: bool,
}

/// Greets a client, and answers its options. Returns `None` if the client ends up without an
/// export.
///
/// # Errors
///
/// Fails if the client breaks the protocol or disconnects. Such a client gets no answer.
pub(crate) async fn greet<S>(disk: &Disk, stream: &mut S) -> io::Result<Option<Agreed>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut hello = Vec::new();
    hello.put_u64(MAGIC);
    hello.put_u64(OPTION);
    hello.put_u16(FIXED_NEWSTYLE | NO_ZEROES);
    stream.write_all(&hello).await?;
    let theirs = stream.read_u32().await?;
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if theirs & !known != 0 || theirs & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(nonsense("it does not speak the fixed newstyle handshake"));
    }
    let mut agreed = Agreed {
        structured: false,
        no_zeroes: theirs & u32::from(NO_ZEROES) != 0,
    };
    for _ in 0..OPTIONS {
        if stream.read_u64().await? != OPTION {
            return Err(nonsense("what it sent is no option"));
        }
        let (option, len) = (stream.read_u32().await?, stream.read_u32().await?);
        if len > MAX_OPTION {
            return Err(nonsense("an option is too long"));
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data).await?;
        match option {
            OPT_EXPORT_NAME if disk.is_named(&data) => {
                stream.write_all(&export(disk, agreed)).await?;
                return Ok(Some(agreed));
            }
            // Closing the connection is the only way to refuse the name in this option.
            OPT_EXPORT_NAME => return Ok(None),
            OPT_ABORT => {
                stream.write_all(&reply(option, REP_ACK, &[])).await?;
                return Ok(None);
            }
            _ => {
                let (answer, chosen) = answer(disk, option, &data, &mut agreed);
                stream.write_all(&answer).await?;
                if chosen {
                    return Ok(Some(agreed));
                }
            }
        }
    }
    Err(nonsense("it asks for one option after the other"))
}

/// Returns the answer to an option, and true if the option gives the client the export.
fn answer(disk: &Disk, option: u32, data: &[u8], agreed: &mut Agreed) -> (Vec<u8>, bool) {
    let refused = |error| (reply(option, error, &[]), false);
    match option {
        OPT_LIST if data.is_empty() => {
            let mut name = Vec::new();
            name.put_u32(disk.name.len() as u32);
            name.put_slice(disk.name.as_bytes());
            let mut list = reply(option, REP_SERVER, &name);
            list.extend(reply(option, REP_ACK, &[]));
            (list, false)
        }
        OPT_STRUCTURED_REPLY if data.is_empty() => {
            agreed.structured = true;
            (reply(option, REP_ACK, &[]), false)
        }
        OPT_INFO | OPT_GO => match wanted(data) {
            Some(name) if disk.is_named(name) => {
                let mut infos = reply(option, REP_INFO, &about(disk, *agreed));
                infos.extend(reply(option, REP_INFO, &block_sizes()));
                infos.extend(reply(option, REP_ACK, &[]));
                (infos, option == OPT_GO)
            }
            Some(_) => refused(REP_ERR_UNKNOWN),
            None => refused(REP_ERR_INVALID),
        },
        OPT_LIST | OPT_STRUCTURED_REPLY => refused(REP_ERR_INVALID),
        _ => refused(REP_ERR_UNSUP),
    }
}

/// Returns the name in the data of an `INFO` or `GO`, or `None` if the data is malformed. The list
/// of requested information is ignored: the client gets all of it.
fn wanted(mut data: &[u8]) -> Option<&[u8]> {
    let len = data.try_get_u32().ok()? as usize;
    let (name, mut rest) = data.split_at_checked(len)?;
    let infos = rest.try_get_u16().ok()? as usize;
    (rest.len() == 2 * infos).then_some(name)
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut reply = Vec::with_capacity(20 + data.len());
    reply.put_u64(OPTION_REPLY);
    reply.put_u32(option);
    reply.put_u32(kind);
    reply.put_u32(data.len() as u32);
    reply.put_slice(data);
    reply
}

/// Appends the size of the disk, and the flags for the requests that it accepts.
fn size_and_flags(disk: &Disk, agreed: Agreed, out: &mut Vec<u8>) {
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
    flags |= match disk.read_only {
        true => READ_ONLY,
        false => SEND_TRIM | SEND_WRITE_ZEROES,
    };
    if agreed.structured {
        flags |= SEND_DF;
    }
    out.put_u64(disk.len() as u64);
    out.put_u16(flags);
}

fn about(disk: &Disk, agreed: Agreed) -> Vec<u8> {
    let mut info = Vec::new();
    info.put_u16(INFO_EXPORT);
    size_and_flags(disk, agreed, &mut info);
    info
}

fn block_sizes() -> Vec<u8> {
    let mut info = Vec::new();
    info.put_u16(INFO_BLOCK_SIZE);
    for bytes in [1, 4096, MAX_PAYLOAD] {
        info.put_u32(bytes);
    }
    info
}

/// Builds the answer to the old option `EXPORT_NAME`, which has no head.
fn export(disk: &Disk, agreed: Agreed) -> Vec<u8> {
    let mut export = Vec::new();
    size_and_flags(disk, agreed, &mut export);
    if !agreed.no_zeroes {
        export.put_bytes(0, 124);
    }
    export
}
