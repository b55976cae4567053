//! Computes the CRC-32C of files by a device, or copies a file and checks it on the way:
//! `crc32c FILE...`, and `crc32c -c CRC FROM TO`.
//!
//! Each file streams through pooled Bufs, and the CRC of a part continues that of the parts before
//! it. Without `-c`, the program reads the next part while the device works on the current one.
//! With `-c`, the device copies each part and computes its CRC in the same pass, one part after the
//! other. The last part is checked against CRC, and TO is created only if the CRC is right. `-` is
//! the standard input.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use tokio::task::spawn_blocking;
use tokio_doca::crc::{Crc, CrcOptions};
use tokio_doca::{Buf, BufPool, Device, Mmap, WorkQ};

const PART: usize = 1 << 20;

const USAGE: &str = "usage: crc32c FILE...  or  crc32c -c CRC FROM TO";

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
type Input = Box<dyn Read + Send>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
    let (code, message) = match args[..] {
        [] | ["-c", ..] if args.len() != 4 => (2, USAGE.to_owned()),
        _ => match run(&args) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => (1, format!("crc32c: {error}")),
        },
    };
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}

fn run(args: &[&str]) -> Result<()> {
    let device = Device::open_default()?;
    let mmap = Mmap::builder().device(&device).alloc(3 * PART)?;
    let stream = Stream {
        pool: BufPool::builder(&mmap).element_size(PART).build()?,
        crc: Crc::builder(&device).attach(&WorkQ::builder().build()?)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if let ["-c", crc, from, to] = *args {
            let Ok(crc) = u32::from_str_radix(crc.trim_start_matches("0x"), 16) else {
                return Err(format!("{crc} is no CRC: write up to 8 hexadecimal digits").into());
            };
            return stream.copy(from, to, crc).await;
        }
        for name in args {
            let crc = stream.sum(name).await?;
            writeln!(io::stdout(), "{crc:08x}  {name}")?;
        }
        Ok(())
    })
}

struct Stream {
    pool: BufPool,
    crc: Crc,
}

impl Stream {
    /// Computes the CRC of a file.
    async fn sum(&self, name: &str) -> Result<u32> {
        let mut input = open(name)?;
        let (mut part, mut next) = (self.pool.alloc().await, self.pool.alloc().await);
        input = read(input, &part).await?;
        let mut crc = 0;
        while part.data_len() > 0 {
            let so_far = CrcOptions::new().seed(crc);
            let (computed, rest) =
                tokio::join!(self.crc.crc32c_with(so_far, &part), read(input, &next));
            (crc, input) = (computed?, rest?);
            std::mem::swap(&mut part, &mut next);
        }
        Ok(crc)
    }

    /// Copies a file, and fails if the copied bytes do not have the CRC `expected`.
    async fn copy(&self, from: &str, to: &str, expected: u32) -> Result<()> {
        let unfinished = format!("{to}.part");
        let copied = self.copy_to(from, &unfinished, expected).await;
        match copied {
            Ok(()) => Ok(fs::rename(&unfinished, to)?),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(format!("{from}: {error}").into())
            }
        }
    }

    async fn copy_to(&self, from: &str, to: &str, expected: u32) -> Result<()> {
        let (mut input, mut output) = (open(from)?, File::create(to)?);
        let (mut part, mut next) = (self.pool.alloc().await, self.pool.alloc().await);
        let copy = self.pool.alloc().await;
        input = read(input, &part).await?;
        let mut crc = 0;
        loop {
            input = read(input, &next).await?;
            let options = CrcOptions::new().seed(crc);
            let is_last = next.data_len() == 0;
            let options = match is_last {
                true => options.expected(expected),
                false => options,
            };
            crc = self.crc.copy_crc_with(options, &part, &copy).await?.crc;
            output.write_all(&copy.data()?)?;
            if is_last {
                return Ok(());
            }
            copy.reset_data_len()?;
            std::mem::swap(&mut part, &mut next);
        }
    }
}

fn open(name: &str) -> Result<Input> {
    if name == "-" {
        return Ok(Box::new(io::stdin()));
    }
    if Path::new(name).is_dir() {
        return Err(format!("cannot read {name}: it is a directory").into());
    }
    let file = File::open(name).map_err(|error| format!("cannot read {name}: {error}"))?;
    Ok(Box::new(file))
}

/// Reads until the Buf is full or the input ends.
async fn read(mut input: Input, buf: &Buf) -> io::Result<Input> {
    let buf = buf.clone();
    let read = spawn_blocking(move || {
        buf.reset_data_len()?;
        let mut data = buf.data_mut()?;
        loop {
            match data.read_from(&mut input) {
                Ok(0) => return Ok(input),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    });
    read.await?
}
