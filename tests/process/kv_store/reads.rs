//! Reads of a client at moments that are rare with a real server.

use std::future::{Future, pending};

use support::{LIMIT, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_doca::Rdma;
use tokio_doca::mem::Access;
use zerocopy::IntoBytes;

use super::client::Client;
use super::log::{Host, MEMORY};
use super::store::Store;
use super::wire::*;

/// Connects a client to the memory of a store that was started `boot` times.
async fn meet(host: &Host, mut stream: TcpStream, store: &Store, boot: u64) -> Rdma {
    assert_eq!(stream.read_u8().await.unwrap(), BY_RDMA);
    let builder = Rdma::builder(&host.device).permissions(Access::RDMA_READ);
    let rdma = builder.attach(&host.workq).unwrap();
    rdma.handshake_accept(&mut stream).await.unwrap();
    let mmap = store.memory().mmap();
    let blob = mmap.export_rdma(&host.device).unwrap();
    stream.write_u32_le(blob.len() as u32).await.unwrap();
    stream.write_all(&blob).await.unwrap();
    stream.write_u64_le(boot).await.unwrap();
    rdma
}

async fn client(host: &Host) -> (Client, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = Client::new(&address, &host.device, &host.workq, LIMIT).unwrap();
    (client, listener)
}

/// Gets "key" while the server runs.
async fn get(client: &mut Client, server: impl Future<Output = ()>) -> Option<Vec<u8>> {
    tokio::select! {
        got = client.get(b"key") => got.unwrap().map(|value| value.data),
        () = server => unreachable!("it serves without end"),
    }
}

/// After the log has wrapped, a put overwrites an old record before it writes the index, and its
/// value may contain bytes that look like a record.
#[test]
fn what_lies_where_a_record_was_read_before_is_not_taken_for_it() {
    run(async {
        let host = Host::new();
        let mut store = host.store().await;
        host.put(&mut store, b"key", b"first").await.unwrap();
        let (mut client, listener) = client(&host).await;
        let met = async {
            let (stream, _) = listener.accept().await.unwrap();
            meet(&host, stream, &store, 1).await
        };
        let (got, _rdma) = tokio::join!(client.get(b"key"), met);
        assert_eq!(got.unwrap().unwrap().data, b"first");
        host.put(&mut store, b"key", b"second").await.unwrap();
        let body = b"keythird";
        let mut head = Head::new(3, 5, 3);
        head.segment = 1.into();
        head.crc = crc32c::crc32c_append(head.seed(), body).into();
        let at = Layout::of(MEMORY).segment(0);
        store.memory().write(at + HEAD, body).unwrap();
        store.memory().write(at, head.as_bytes()).unwrap();
        assert_eq!(get(&mut client, pending()).await.unwrap(), b"second");
    });
}

/// The server dies after it has sent its export, and the next server has cleared the index.
#[test]
fn a_key_is_not_absent_because_the_index_is_built_anew() {
    run(async {
        let host = Host::new();
        let mut store = host.store().await;
        host.put(&mut store, b"key", b"value").await.unwrap();
        let (mut client, listener) = client(&host).await;
        let index = Layout::of(MEMORY).index();
        let memory = store.memory();
        memory.store(BOOT, 2).unwrap();
        memory.write(index.start, &vec![0; index.len()]).unwrap();
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let _first = meet(&host, stream, &store, 1).await;
            let (stream, _) = listener.accept().await.unwrap();
            let store = host.store().await;
            let _second = meet(&host, stream, &store, 3).await;
            pending().await
        };
        assert_eq!(get(&mut client, server).await.unwrap(), b"value");
    });
}
