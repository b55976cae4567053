//! Errors by themselves: how they turn into those of others.

use support::each;

#[test]
fn errors_become_io_errors_of_the_same_kind() {
    each(async |bench| {
        let (src, dst) = (bench.filled(b"abc"), bench.empty());
        let io: std::io::Error = bench.dma.copy(&dst, &src).await.unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::InvalidInput, "{io}");
        let guard = src.data().unwrap();
        dst.extend_from_slice(b"d").unwrap();
        let io: std::io::Error = bench.dma.copy(&dst, &src).await.unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::ResourceBusy, "{io}");
        drop(guard);
        let io: std::io::Error = bench.soft.open("nope").unwrap_err().into();
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    });
}
