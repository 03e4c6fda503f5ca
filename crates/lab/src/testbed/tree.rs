//! What hosts of a testbed have of their own beside their networks: a view of files in which `/var/lib` and `/mnt` are theirs, and a
//! name. So several machines of a cluster stand on one, each with its `/var/lib/ropewalk`, its disks and its mounts.
//!
//! The trees are below [`TREES`], what holds the namespaces below [`SPACES`], each in a directory named like its testbed. A host's
//! mounts are seen on that host alone, and go with its processes and namespace.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{description::Testbed, error::TestbedError, host::Host, run::run};

const TREES: &str = "/var/tmp/ropewalk-testbed";
const SPACES: &str = "/run/ropewalk/testbed";
/// What each host has of its own, and what that is called in its tree.
const OWN: [(&str, &str); 2] = [("/var/lib", "var-lib"), ("/mnt", "mnt")];

fn failed(action: String) -> impl FnOnce(io::Error) -> TestbedError {
    move |source| TestbedError::System { action, source }
}

fn make_dir(path: &Path) -> Result<(), TestbedError> {
    fs::create_dir_all(path).map_err(failed(format!("make {}", path.display())))
}

fn spaces(name: &str) -> PathBuf {
    Path::new(SPACES).join(format!("{name}.spaces"))
}

fn trees(name: &str) -> PathBuf {
    Path::new(TREES).join(name)
}

/// The namespaces of a host: of files, and of its name.
fn held(name: &str, host: &str) -> [PathBuf; 2] {
    ["mnt", "uts"].map(|kind| spaces(name).join(format!("{host}.{kind}")))
}

/// Makes them for every host.
pub(super) fn make(testbed: &Testbed) -> Result<(), TestbedError> {
    let name = &testbed.spec.name;
    let spaces = spaces(name);
    make_dir(&spaces)?;
    let place = spaces.to_string_lossy();
    // A namespace of files can be held only where mounts are not passed on.
    run("hold namespaces of files", "mount", &["--bind", &place, &place])?;
    run("hold namespaces of files", "mount", &["--make-private", &place])?;
    for host in &testbed.hosts {
        make_one(name, &host.name)?;
    }
    Ok(())
}

fn make_one(name: &str, host: &str) -> Result<(), TestbedError> {
    // Mounts of Ropewalk on this machine are none of the host's, and would be held by its namespace after they are unmounted here. One
    // whose directory is removed here meanwhile is gone there too, and is missed: once more then.
    let mut script = String::from(
        "for _ in 1 2 3; do umount --all --lazy --internal-only --no-canonicalize --types fuse.ropewalk && break; done && ",
    );
    for (place, own) in OWN {
        let tree = trees(name).join(host).join(own);
        make_dir(&tree)?;
        // Names have letters and digits only: nothing is to be quoted.
        script += &format!("mount --bind {} {place} && ", tree.display());
    }
    script += &format!("hostname {host}");
    let [mnt, uts] = held(name, host);
    for file in [&mnt, &uts] {
        fs::File::create(file).map_err(failed(format!("make {}", file.display())))?;
    }
    let (mnt, uts) = (format!("--mount={}", mnt.display()), format!("--uts={}", uts.display()));
    let words = [&mnt, &uts, "--propagation", "private", "sh", "-c", &script];
    run("give a host a tree of its own", "unshare", &words).map(drop)
}

/// The words of `nsenter` with which a command runs on a host that has a tree.
pub(super) fn enter(testbed: &str, host: &Host) -> Vec<String> {
    let [mnt, uts] = held(testbed, &host.name);
    vec![
        format!("--net=/run/netns/{}", host.netns),
        format!("--mount={}", mnt.display()),
        format!("--uts={}", uts.display()),
        "--".to_owned(),
    ]
}

/// Removes what [`make`] made, whole or in part. The processes on the hosts have ended.
pub(super) fn remove(name: &str) -> Result<(), TestbedError> {
    let spaces = spaces(name);
    if spaces.exists() {
        // With all that is mounted below. In part: it may not be a mount yet.
        let _ = run("let namespaces of files go", "umount", &["--recursive", &spaces.to_string_lossy()]);
    }
    for place in [spaces, trees(name)] {
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(format!("remove {}", place.display()))(error));
            }
            _ => {}
        }
    }
    // The last one takes the place of all along.
    let _ = fs::remove_dir(TREES);
    Ok(())
}
