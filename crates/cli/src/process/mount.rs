//! A mount's process.

use std::{
    cell::Cell,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    admin, endpoint, metrics, mounts,
    pid_file::Said,
    presence::{Presence, told_early},
    stop::Stop,
    tunables,
};
use crate::{
    args,
    cluster_dir::{ClusterDir, access},
};

/// How long the end of the session may take. What is dirty is written by then, where the mount has ended well.
const END_PATIENCE: Duration = Duration::from_secs(300);

/// And where as long was tried in vain to write it.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// So many files that have lost something are named.
const NAMED_MAX: usize = 16;

/// How often whoever waits for the end hears that it goes on, as long as it does.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// `ropewalk mount --foreground`: until unmounted or told to end.
pub fn run(dir: &ClusterDir, mountpoint: &Path, args: &args::Mount) -> Result<()> {
    access::close_what_is_made();
    let fs_name = &args.fs;
    let name = mounts::process_name(mountpoint);
    mounts::wait_predecessor(&dir.pid_file(&name), mountpoint);
    let runtime = endpoint::runtime()?;
    // As with `serve`.
    let mut stop = {
        let _inside = runtime.enter();
        Stop::listen()?
    };
    let presence = Presence::claim(dir, &name)?;
    let ended = runtime.block_on(async {
        tracing::info!("mounts {fs_name} on {}", mountpoint.display());
        metrics::begin(dir, &name, args.metrics).await?;
        let own = endpoint::start_client_endpoint(dir)?;
        let running = admin::serve_admin(&own, "client", &mountpoint.display().to_string());
        tunables::follow(&own, dir, Arc::clone(&running));
        let mut config = endpoint::client_config(dir, fs_name, mountpoint.display().to_string(), &own);
        config.tunables.names_ahead = args.names == args::Names::Ahead;
        // A session that has begun ends like that of a mount that is killed.
        let Some(client) = stop.before(endpoint::mount_client(dir, &own, config)).await else {
            told_early();
            return Ok(());
        };
        let client = client?;
        let _ = running.client.set(client.clone()); // once
        let session = client.session();
        let called = mountpoint.display().to_string();
        running.history.keep(dir, &name, (&called, "client"), Some((session.fs.id.0, session.session.0)));
        let options = fuse::MountOptions {
            read_only: args.read_only || client.session().read_only,
            squash: client.session().squash,
            root: client.session().root,
            no_exec: args.no_exec,
            no_atime: args.no_atime,
            transport: args.fuse_transport,
            ..fuse::MountOptions::new(mountpoint, fs_name)
        };
        let _ = running.requests_memory.set(options.memory_max()); // once
        let mount = match fuse::Mount::start(Arc::new(client.clone()), options) {
            Ok(mount) => Arc::new(mount),
            Err(error) => {
                let _ = client.shutdown(Instant::now() + Duration::from_secs(10)).await;
                return Err(error.into());
            }
        };
        let _ = running.mount.set(Arc::downgrade(&mount)); // once
        presence.says_lost()?;
        presence.ready()?;
        tracing::info!("{fs_name} is mounted on {}", mountpoint.display());
        let told = tokio::select! {
            () = mount.gone() => false,
            () = stop.wait() => true,
        };
        let is_durable = Cell::new(false);
        let end = async {
            let ended = if told { mount.end_on_signal().await } else { mount.unmounted().await };
            is_durable.set(ended.is_ok());
            let in_vain = ended.as_ref().is_err_and(|error| is_not_durable(error));
            let patience = if in_vain { LAST_PATIENCE } else { END_PATIENCE };
            client.shutdown(Instant::now() + patience).await.context("write what is left")?;
            match ended {
                // What was not durable then is now.
                Err(_) if in_vain && !mount.has_lost_pages() => Ok(()),
                ended => ended.context("the mount ended"),
            }
        };
        let left = || Left {
            pages: mount.pages_written(),
            dirty: client.pool_use().dirty,
            // As long as the mount has not ended the kernel may hold more.
            said: match unstored(&client, mount.has_lost_pages()) {
                Some(what) => Said::Lost(format!("{what}: its process was ended before that was stored")),
                None if is_durable.get() => Said::NothingLost,
                None => Said::NotYet,
            },
        };
        let ended: Result<()> = tokio::select! {
            ended = end => ended,
            never = tell_progress(&presence, left) => never,
        };
        let lost = || unstored(&client, mount.has_lost_pages());
        let lost = ended.as_ref().err().and_then(|error| Some(format!("{}: {error:#}", lost()?)));
        presence.say(&lost.map_or(Said::NothingLost, Said::Lost));
        ended
    });
    if ended.is_ok() {
        tracing::info!("unmounted");
    }
    // All that it runs ends before its pid file goes.
    drop(runtime);
    ended
}

/// What is not stored, and lost with a mount that ends now. `pages`: also what programs had changed in mappings.
fn unstored(client: &client::Client, pages: bool) -> Option<String> {
    let (files, names) = client.unstored();
    let numbers: Vec<String> = files.iter().take(NAMED_MAX).map(|ino| ino.0.to_string()).collect();
    let more = if files.len() > NAMED_MAX { ", ..." } else { "" };
    let files =
        format!("what was written last to {} files (inodes {}{more})", files.len(), numbers.join(", "));
    let what = [
        (!numbers.is_empty()).then_some(files),
        pages.then(|| "what programs had changed in mappings".to_owned()),
        names.then(|| "names that were made last".to_owned()),
    ];
    let what: Vec<String> = what.into_iter().flatten().collect();
    (!what.is_empty()).then(|| what.join(", "))
}

fn is_not_durable(error: &fuse::MountError) -> bool {
    matches!(error, fuse::MountError::NotDurable { .. })
}

/// What is left to do at the end of a mount.
#[derive(PartialEq)]
struct Left {
    /// Bytes of pages that the kernel has written.
    pages: u64,
    /// Bytes that are dirty here.
    dirty: u64,
    /// What is lost if it does not get on.
    said: Said,
}

/// Says that the end goes on whenever what is left has changed, and what that is.
async fn tell_progress(presence: &Presence, left: impl Fn() -> Left) -> ! {
    let mut before = None;
    loop {
        let now = left();
        if before.as_ref() != Some(&now) {
            presence.goes_on();
            presence.say(&now.said);
            before = Some(now);
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}
