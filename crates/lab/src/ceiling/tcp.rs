//! TCP over loopback: both ends in this process, one thread an end.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use super::rate::{CeilingError, Part, Rate, TRANSFER_BYTES, joined, timed};

/// Connections of one measurement.
pub const CONNECTIONS_MAX: usize = 64;
/// The longest measurement.
pub const LOOPBACK_TIME_MAX: Duration = Duration::from_secs(60);

/// A transfer that takes longer than this fails.
const STALL_MAX: Duration = Duration::from_secs(20);

/// Sends for `duration` over `connections` connections at once, in writes of 1 MiB. Counts what was
/// received, up to the last byte.
pub fn loopback_tcp(duration: Duration, connections: usize) -> Result<Rate, CeilingError> {
    if duration.is_zero() || duration > LOOPBACK_TIME_MAX {
        return Err(CeilingError::BadParameter {
            name: "duration",
            value: format!("{duration:?}"),
            allowed: format!("above 0 to {LOOPBACK_TIME_MAX:?}"),
        });
    }
    if connections == 0 || connections > CONNECTIONS_MAX {
        return Err(CeilingError::BadParameter {
            name: "connections",
            value: connections.to_string(),
            allowed: format!("1 to {CONNECTIONS_MAX}"),
        });
    }
    let pairs = (0..connections).map(|_| pair()).collect::<io::Result<Vec<_>>>();
    let pairs = pairs.map_err(|source| CeilingError::Tcp { action: "connect", source })?;
    run(pairs, duration).map_err(|source| CeilingError::Tcp { action: "move data", source })
}

/// Two connected ends.
pub(super) fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect_timeout(&listener.local_addr()?, STALL_MAX)?;
    let (far, peer) = listener.accept()?;
    if peer != near.local_addr()? {
        return Err(io::Error::other("another process connected to the measuring port"));
    }
    near.set_write_timeout(Some(STALL_MAX))?;
    far.set_read_timeout(Some(STALL_MAX))?;
    Ok((near, far))
}

fn run(pairs: Vec<(TcpStream, TcpStream)>, duration: Duration) -> io::Result<Rate> {
    let start_line = &Barrier::new(2 * pairs.len() + 1);
    thread::scope(|scope| {
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for (near, far) in pairs {
            senders.push(scope.spawn(move || send(near, duration, start_line)));
            receivers.push(scope.spawn(move || receive(far, start_line)));
        }
        start_line.wait();
        let start = Instant::now();
        let sent = senders.into_iter().map(joined).collect::<Vec<io::Result<Part>>>();
        let received = receivers.into_iter().map(joined).collect::<io::Result<Vec<Part>>>()?;
        let sent = sent.into_iter().collect::<io::Result<Vec<Part>>>()?;
        let end = received.iter().map(|part| part.ended).max().unwrap_or(start);
        Ok(Rate {
            bytes: received.iter().map(|part| part.bytes).sum(),
            elapsed_seconds: (end - start).as_secs_f64(),
            cpu_seconds: sent.iter().chain(&received).map(|part| part.cpu_seconds).sum(),
        })
    })
}

fn send(mut stream: TcpStream, duration: Duration, start_line: &Barrier) -> io::Result<Part> {
    let buffer = vec![0x5a; TRANSFER_BYTES];
    start_line.wait();
    let start = Instant::now();
    timed(|| {
        let mut bytes = 0;
        while start.elapsed() < duration {
            stream.write_all(&buffer)?;
            bytes += buffer.len() as u64;
        }
        stream.shutdown(Shutdown::Write)?;
        Ok(bytes)
    })
}

fn receive(mut stream: TcpStream, start_line: &Barrier) -> io::Result<Part> {
    let mut buffer = vec![1; TRANSFER_BYTES];
    start_line.wait();
    timed(|| {
        let mut bytes = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(bytes),
                n => bytes += n as u64,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_whole_writes_and_counts_cpu() {
        for connections in [1, 3] {
            let rate = loopback_tcp(Duration::from_millis(300), connections).unwrap();
            assert!(rate.bytes >= connections as u64 * TRANSFER_BYTES as u64);
            assert!(rate.bytes.is_multiple_of(TRANSFER_BYTES as u64));
            assert!(rate.elapsed_seconds > 0.0 && rate.cpu_seconds > 0.0 && rate.gb_per_second() > 0.0);
        }
    }

    #[test]
    fn bounds_are_named() {
        for (duration, connections, part) in
            [(0, 1, "0ns"), (61, 1, "61s"), (1, 0, "connections = 0"), (1, 65, "1 to 64")]
        {
            let error = loopback_tcp(Duration::from_secs(duration), connections).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
