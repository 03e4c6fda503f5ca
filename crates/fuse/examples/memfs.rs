//! Mounts an empty file system kept in memory, until it is unmounted (`umount DIR`) or told to end
//! (SIGTERM, SIGINT). To try test scripts on the mount alone, without a cluster:
//! `cargo run -p ropewalk-fuse --example memfs -- DIR` (`ROPEWALK_FUSE_TRANSPORT=uring`: over io_uring)

use std::{process::ExitCode, sync::Arc};

use fuse::{Mount, MountOptions};
use tokio::signal::unix::{SignalKind, signal};

#[allow(dead_code, clippy::unwrap_used)] // the tests use all of it
#[path = "../tests/common/model.rs"]
mod model;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: memfs DIR");
        return ExitCode::from(2);
    };
    let mut options = MountOptions::new(dir, "model");
    match std::env::var("ROPEWALK_FUSE_TRANSPORT").map(|transport| transport.parse()) {
        Ok(Ok(transport)) => options.transport = transport,
        Ok(Err(bad)) => {
            eprintln!("memfs: {bad}");
            return ExitCode::from(2);
        }
        Err(_) => {}
    }
    let mount = match Mount::start(Arc::new(model::Model::new()), options) {
        Ok(mount) => mount,
        Err(error) => {
            eprintln!("memfs: {error}");
            return ExitCode::FAILURE;
        }
    };
    eprintln!("mounted on {}", mount.path().display());
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return ExitCode::FAILURE;
    };
    let end = tokio::select! {
        end = mount.unmounted() => end,
        _ = term.recv() => mount.end_on_signal().await,
        _ = int.recv() => mount.end_on_signal().await,
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memfs: {error}");
            ExitCode::FAILURE
        }
    }
}
