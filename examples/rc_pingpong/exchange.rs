//! The exchange by which two sides of `ibv_rc_pingpong` connect: each sends its address by TCP, as
//! a line of text.
//!
//! ```text
//! client                                              server
//!   LID:QPN:PSN:GID and a zero byte  ------------->     connects
//!               connects    <-------------   LID:QPN:PSN:GID and a zero byte
//!               "done" and a zero byte  ---------->     begins
//! ```

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::str::FromStr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The length of a line in bytes, with its zero byte.
const LINE: usize = 52;

const DONE: &[u8] = b"done\0";

/// The RDMA address of one side. Its text is the line of the exchange, without the zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The LID of the side's port on InfiniBand; 0 on Ethernet.
    pub(crate) lid: u16,
    /// The number of the side's queue pair: 24 bits.
    pub(crate) qpn: u32,
    /// The number of the side's first packet: 24 bits.
    pub(crate) psn: u32,
    /// The GID, or all zeroes if the LID is enough.
    pub(crate) gid: [u8; 16],
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { lid, qpn, psn, gid } = *self;
        let gid = u128::from_be_bytes(gid);
        write!(f, "{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}")
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(line: &str) -> std::result::Result<Place, String> {
        let mut fields = line.split(':');
        let mut field = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            // `from_str_radix` would accept a sign, which is not a digit.
            let hex = field.bytes().all(|byte| byte.is_ascii_hexdigit());
            hex.then(|| u128::from_str_radix(field, 16).ok())?
        };
        let place = [field(4), field(6), field(6), field(32)];
        let ([Some(lid), Some(qpn), Some(psn), Some(gid)], None) = (place, fields.next()) else {
            return Err(format!("{line:?} is not LID:QPN:PSN:GID in hexadecimal"));
        };
        // The casts lose nothing: 4 digits fit into a `u16`, and 6 into a `u32`.
        Ok(Place {
            lid: lid as u16,
            qpn: qpn as u32,
            psn: psn as u32,
            gid: gid.to_be_bytes(),
        })
    }
}

impl Place {
    async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        stream.write_all(format!("{self}\0").as_bytes()).await
    }

    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Place> {
        let mut line = [0; LINE];
        stream.read_exact(&mut line).await?;
        let text = line.strip_suffix(b"\0").map(String::from_utf8_lossy);
        let text = text.ok_or_else(|| invalid("the peer's line does not end where it should"))?;
        text.parse().map_err(|error: String| invalid(&error))
    }
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

/// The client's part of the exchange. The client connects its queue pair afterwards.
pub(crate) async fn call(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    here: Place,
) -> Result<Place> {
    here.write(stream).await?;
    let there = Place::read(stream).await?;
    stream.write_all(DONE).await?;
    stream.flush().await?;
    Ok(there)
}

/// The server's part of the exchange. It calls `connect` before it sends its own address, because
/// the client may send as soon as it knows that address.
pub(crate) async fn answer<E: From<Error>>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    here: Place,
    connect: impl AsyncFnOnce(Place) -> std::result::Result<(), E>,
) -> std::result::Result<Place, E> {
    let there = Place::read(stream).await?;
    connect(there).await?;
    here.write(stream).await?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done).await?;
    if done != DONE {
        return Err(invalid("the peer's last word is not \"done\"").into());
    }
    Ok(there)
}
