//! The client of the store.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_doca::stream::{RdmaStream, StreamAddr, StreamOptions};
use tokio_doca::{Device, WorkQ};

use crate::store::{BLOCK, Result};

pub(crate) struct Client {
    stream: RdmaStream,
}

impl Client {
    pub(crate) async fn connect(device: &Device, addr: impl Into<StreamAddr>) -> Result<Client> {
        let workq = WorkQ::builder().build()?;
        let options = StreamOptions::new().connections(1);
        let connector = options.connector(device, &workq)?;
        let stream = connector.connect(addr).await?;
        Ok(Client { stream })
    }

    pub(crate) async fn read(&mut self, block: u32) -> Result<Vec<u8>> {
        self.ask(b'R', block, &[]).await?;
        let mut data = vec![0; BLOCK];
        self.stream.read_exact(&mut data).await?;
        Ok(data)
    }

    pub(crate) async fn write(&mut self, block: u32, data: &[u8; BLOCK]) -> Result<()> {
        self.ask(b'W', block, data).await
    }

    async fn ask(&mut self, verb: u8, block: u32, data: &[u8]) -> Result<()> {
        let request = [&[verb][..], &block.to_be_bytes(), data].concat();
        self.stream.write_all(&request).await?;
        if self.stream.read_u8().await? == 0 {
            return Ok(());
        }
        let mut why = vec![0; self.stream.read_u16().await?.into()];
        self.stream.read_exact(&mut why).await?;
        Err(String::from_utf8_lossy(&why).into())
    }
}
