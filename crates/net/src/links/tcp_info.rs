//! What the kernel knows of a connection (`TCP_INFO`).
#![allow(unsafe_code)]

use std::{io, mem::MaybeUninit, os::fd::AsRawFd, time::Duration};

use base::units::as_seconds;
use serde::Serialize;
use tokio::net::TcpStream;

/// The parts of the kernel's `tcp_info` that say how a connection fares.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TcpInfo {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Its mean deviation, microseconds.
    pub rttvar_us: u32,
    /// Packets sent again since the connection began.
    pub retransmits: u32,
    /// Packets on their way.
    pub unacked: u32,
    /// Bytes sent that the peer's kernel has acknowledged.
    #[serde(rename = "acked_bytes")]
    pub bytes_acked: u64,
    /// Bytes the kernel has received.
    #[serde(rename = "received_bytes")]
    pub bytes_received: u64,
    /// Packets believed lost now.
    pub lost: u32,
    /// Congestion window, packets.
    pub cwnd: u32,
    /// Largest packet sent, bytes.
    #[serde(rename = "segment_bytes")]
    pub mss: u32,
    /// Time since data was last received.
    #[serde(rename = "last_received_s", serialize_with = "as_seconds")]
    pub last_received: Duration,
}

impl TcpInfo {
    /// Smoothed round-trip time.
    pub fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.into())
    }
}

pub(crate) fn tcp_info(stream: &TcpStream) -> io::Result<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open while `stream` is borrowed; `info` has room for `len` bytes.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers, zeroed before; the kernel filled the first `len` bytes.
    let info = unsafe { info.assume_init() };
    Ok(TcpInfo {
        rtt_us: info.tcpi_rtt,
        rttvar_us: info.tcpi_rttvar,
        retransmits: info.tcpi_total_retrans,
        unacked: info.tcpi_unacked,
        bytes_acked: info.tcpi_bytes_acked,
        bytes_received: info.tcpi_bytes_received,
        lost: info.tcpi_lost,
        cwnd: info.tcpi_snd_cwnd,
        mss: info.tcpi_snd_mss,
        last_received: Duration::from_millis(info.tcpi_last_data_recv.into()),
    })
}
