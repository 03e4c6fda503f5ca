//! The data path of one client and one server without a file system: what a byte cannot do without.
//! Read: read a file in steps of 1 MiB, CRC-32C of every 4 KiB, send; receive into memory of a pool larger
//! than the CPU's caches, CRC again. Write: the same the other way round. A pair of threads a connection,
//! so that sender and receiver work at the same time. With the file on tmpfs this is the ceiling of a
//! client library and its servers on the same machine.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::Instant,
};

use base::AlignedBuf;

use super::{
    rate::{CeilingError, Part, Rate, TRANSFER_BYTES, joined, timed},
    tcp,
};

/// Connections at most.
pub const PIPES_MAX: usize = 16;
/// Memory that is received into, or sent from, in turns: all connections together.
const MEMORY_BYTES: usize = 256 << 20;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// Moves `bytes` between a file made in `dir` and memory, over `connections` connections. The file is
/// written before, and removed.
pub fn pipeline(dir: &Path, bytes: u64, connections: usize, way: Way) -> Result<Rate, CeilingError> {
    if connections == 0 || connections > PIPES_MAX {
        return Err(CeilingError::BadParameter {
            name: "connections",
            value: connections.to_string(),
            allowed: format!("1 to {PIPES_MAX}"),
        });
    }
    let disk = |action| move |source| CeilingError::Disk { dir: dir.to_owned(), action, source };
    let steps = (bytes / TRANSFER_BYTES as u64).max(connections as u64);
    let path = dir.join(format!(".ropewalk-pipeline-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(disk("create the test file"))?;
    // Open it stays, without a name: nothing is left behind however this ends.
    std::fs::remove_file(&path).map_err(disk("unlink the test file"))?;
    let one = vec![0xa5; TRANSFER_BYTES];
    for step in 0..steps {
        file.write_all_at(&one, step * TRANSFER_BYTES as u64).map_err(disk("fill the test file"))?;
    }
    let pairs = (0..connections).map(|_| tcp::pair()).collect::<io::Result<Vec<_>>>();
    let pairs = pairs.map_err(|source| CeilingError::Tcp { action: "connect", source })?;
    run(&file, steps, pairs, way).map_err(|source| CeilingError::Tcp { action: "move data", source })
}

fn run(file: &File, steps: u64, pairs: Vec<(TcpStream, TcpStream)>, way: Way) -> io::Result<Rate> {
    let pipes = pairs.len() as u64;
    let memory =
        || (0..MEMORY_BYTES / TRANSFER_BYTES / pipes as usize).map(|_| touched()).collect::<Vec<_>>();
    let memories: Vec<Vec<AlignedBuf>> = (0..pipes).map(|_| memory()).collect();
    thread::scope(|scope| {
        let start = Instant::now();
        let mut threads = Vec::new();
        for (pipe, ((server, client), memory)) in (0u64..).zip(pairs.into_iter().zip(memories)) {
            // Pipe p moves the steps p, p + pipes, ...
            let own = (pipe..steps).step_by(pipes as usize);
            let turns = own.clone().count();
            threads.push(scope.spawn(move || timed(|| serve(file, own, server, way))));
            threads.push(scope.spawn(move || timed(|| use_memory(memory, turns, client, way))));
        }
        let parts = threads.into_iter().map(joined).collect::<io::Result<Vec<Part>>>()?;
        let end = parts.iter().map(|part| part.ended).max().unwrap_or(start);
        Ok(Rate {
            bytes: steps * TRANSFER_BYTES as u64,
            elapsed_seconds: (end - start).as_secs_f64(),
            cpu_seconds: parts.iter().map(|part| part.cpu_seconds).sum(),
        })
    })
}

fn touched() -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(TRANSFER_BYTES);
    buffer.fill(1);
    buffer
}

/// The server's end: the file.
fn serve(file: &File, steps: impl Iterator<Item = u64>, mut stream: TcpStream, way: Way) -> io::Result<u64> {
    let mut buffer = touched();
    let mut bytes = 0;
    for step in steps {
        let offset = step * TRANSFER_BYTES as u64;
        if way == Way::Read {
            file.read_exact_at(&mut buffer, offset)?;
            check(&buffer);
            stream.write_all(&buffer)?;
        } else {
            stream.read_exact(&mut buffer)?;
            check(&buffer);
            file.write_all_at(&buffer, offset)?;
        }
        bytes += buffer.len() as u64;
    }
    Ok(bytes)
}

/// The client's end: memory.
fn use_memory(mut memory: Vec<AlignedBuf>, turns: usize, mut stream: TcpStream, way: Way) -> io::Result<u64> {
    let buffers = memory.len();
    for turn in 0..turns {
        let buffer = &mut memory[turn % buffers];
        if way == Way::Read {
            stream.read_exact(buffer)?;
            check(buffer);
        } else {
            check(buffer);
            stream.write_all(buffer)?;
        }
    }
    Ok((turns * TRANSFER_BYTES) as u64)
}

/// The checksums that a byte has on its way; nobody compares them here.
fn check(buffer: &[u8]) {
    wire::crc::unit_crcs(buffer).for_each(|crc| {
        std::hint::black_box(crc);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_moved_either_way_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        for (way, connections) in [(Way::Read, 1), (Way::Write, 3)] {
            let rate = pipeline(dir.path(), 10 << 20, connections, way).unwrap();
            assert_eq!(rate.bytes, 10 << 20);
            assert!(rate.cpu_seconds > 0.0 && rate.elapsed_seconds > 0.0);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(pipeline(dir.path(), 1, 17, Way::Read).unwrap_err().to_string().contains("1 to 16"));
    }
}
