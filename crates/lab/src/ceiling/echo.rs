//! One byte there and back over loopback, with nothing but sockets: what a request/response is compared with.
//! Tasks of the same runtime hold both ends, as both ends of the transport are in its comparison.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{rate::CeilingError, tcp::LOOPBACK_TIME_MAX};

/// Connections of one measurement.
pub const ECHO_CONNECTIONS_MAX: usize = 1024;

/// Round trips a second of one byte over `connections` connections at once, one under way on each. The first and
/// last tenth of `duration` (at most [`LOOPBACK_TIME_MAX`]) are not counted.
pub async fn echo(duration: Duration, connections: usize) -> Result<f64, CeilingError> {
    if duration.is_zero() || duration > LOOPBACK_TIME_MAX {
        return Err(CeilingError::BadParameter {
            name: "duration",
            value: format!("{duration:?}"),
            allowed: format!("above 0 to {:?}", LOOPBACK_TIME_MAX),
        });
    }
    if connections == 0 || connections > ECHO_CONNECTIONS_MAX {
        return Err(CeilingError::BadParameter {
            name: "connections",
            value: connections.to_string(),
            allowed: format!("1 to {ECHO_CONNECTIONS_MAX}"),
        });
    }
    run(duration, connections).await.map_err(|source| CeilingError::Tcp { action: "echo", source })
}

async fn run(duration: Duration, connections: usize) -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let addr = listener.local_addr()?;
    // Both end with this: dropping a set ends its tasks.
    let mut far = JoinSet::new();
    let mut near = JoinSet::new();
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    for _ in 0..connections {
        let stream = connect(addr).await?;
        let (accepted, _) = listener.accept().await?;
        accepted.set_nodelay(true)?;
        far.spawn(answer(accepted));
        near.spawn(ask(stream, Arc::clone(&count), Arc::clone(&stop)));
    }
    tokio::time::sleep(duration / 10).await;
    let (before, begun) = (count.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(duration * 8 / 10).await;
    let (counted, elapsed) = (count.load(Ordering::Relaxed) - before, begun.elapsed());
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = near.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(counted as f64 / elapsed.as_secs_f64())
}

async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn answer(mut stream: TcpStream) {
    let mut byte = [0; 1];
    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
}

async fn ask(mut stream: TcpStream, count: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> io::Result<()> {
    let mut byte = [7; 1];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&byte).await?;
        stream.read_exact(&mut byte).await?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn counts_round_trips_and_names_bounds() {
        // On a busy machine nothing may get through in so short a time.
        let mut time = Duration::from_millis(50);
        while echo(time, 3).await.unwrap() == 0.0 {
            time *= 2;
        }
        let error = echo(Duration::from_secs(1), 0).await.unwrap_err().to_string();
        assert!(error.contains("connections = 0"), "{error}");
        assert!(echo(Duration::ZERO, 1).await.unwrap_err().to_string().contains("duration"));
    }
}
