//! The environment of the workload's engines: a virtual environment of Python with pinned versions, made from whatever package index
//! pip is configured with. A mark is written last, so that one that was half made is never used.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde::Serialize;
use thiserror::Error;

use super::catalogue::ENGINES;

const REQUIREMENTS: &str = include_str!("../../workload/requirements.txt");
/// Its content is the list of what is installed.
const MARK: &str = "ropewalk-workload.txt";
/// How long one step may take.
const STEP_MAX: Duration = Duration::from_secs(1800);

/// A package of the environment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Package {
    /// Its name in the index.
    pub name: String,
    /// The one version.
    pub version: String,
    /// Its licence.
    pub licence: String,
}

/// Why there is no environment.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A program is missing.
    #[error("{program} is not here; install the package {package}")]
    Missing {
        /// The program.
        program: String,
        /// The distribution's package.
        package: &'static str,
    },
    /// The directory is something else.
    #[error("{0} is not empty and no environment of the workload; name a new directory")]
    NotOurs(PathBuf),
    /// There is none, or it was made by another version.
    #[error(
        "{0} is no environment of this version's workload; make one by `ropewalk lab workload setup --env {0}`"
    )]
    None(PathBuf),
    /// A command failed.
    #[error("{command}: {why}")]
    Command {
        /// As typed.
        command: String,
        /// What it said.
        why: String,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It was stopped.
    #[error("stopped; run it again to go on")]
    Stopped,
}

/// Packages with their versions and licences.
pub fn packages() -> Vec<Package> {
    let line = |line: &str| {
        let (name, rest) = line.split_once("==")?;
        let (version, licence) = rest.split_once("  # ")?;
        Some(Package { name: name.into(), version: version.into(), licence: licence.into() })
    };
    REQUIREMENTS.lines().filter_map(line).collect()
}

/// Where the environment is if no directory is named: beside what this user's programs keep, by the XDG Base Directory
/// Specification. None where the user has no home.
pub fn usual() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let kept = named("XDG_DATA_HOME").or_else(|| Some(named("HOME")?.join(".local/share")))?;
    Some(kept.join("ropewalk/workload"))
}

/// The Python of an environment; refused unless it is whole and of this version.
pub fn python(env: &Path) -> Result<PathBuf, SetupError> {
    match fs::read_to_string(env.join(MARK)) {
        Ok(text) if text == REQUIREMENTS => Ok(env.join("bin/python3")),
        _ => Err(SetupError::None(env.to_owned())),
    }
}

/// Makes the environment, or what is missing of it. `stopped` is asked while commands run.
pub fn setup(env: &Path, stopped: &dyn Fn() -> bool, say: &mut dyn FnMut(&str)) -> Result<(), SetupError> {
    for engine in ENGINES {
        if let Some(package) = engine.package
            && !found(engine.program)
        {
            return Err(SetupError::Missing { program: engine.program.into(), package });
        }
    }
    if python(env).is_ok() {
        return Ok(());
    }
    let begun = env.join("pyvenv.cfg").exists();
    if !begun && fs::read_dir(env).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(SetupError::NotOurs(env.to_owned()));
    }
    let write = |name: &str| {
        let path = env.join(name);
        fs::write(&path, REQUIREMENTS).map_err(|source| SetupError::Io { path, source })
    };
    say("making the environment");
    run(Command::new("python3").args(["-m", "venv"]).arg(env), stopped)?;
    write("requirements.txt")?;
    say("installing the engines");
    let mut pip = Command::new(env.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-q", "-r"]);
    run(pip.arg(env.join("requirements.txt")), stopped)?;
    say("trying the engines");
    let each = "import duckdb, polars, numpy, scipy.optimize, sklearn.cluster, statsmodels.api";
    run(Command::new(env.join("bin/python3")).args(["-c", each]), stopped)?;
    write(MARK)
}

/// Whether a program is on the search path.
pub fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Runs a command in a process group of its own, to its end, the deadline or the stop.
fn run(command: &mut Command, stopped: &dyn Fn() -> bool) -> Result<(), SetupError> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let failed = |why: String| SetupError::Command { command: line.clone(), why };
    let errors = tempfile_for_errors().map_err(|e| failed(e.to_string()))?;
    let to = errors.try_clone().map_err(|e| failed(e.to_string()))?;
    // Some say there why they fail.
    let also = errors.try_clone().map_err(|e| failed(e.to_string()))?;
    command.stdin(Stdio::null()).stdout(also).stderr(to).process_group(0);
    let mut child = Group(command.spawn().map_err(|e| failed(e.to_string()))?);
    let end = Instant::now() + STEP_MAX;
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(failed(format!("{status}: {}", tail(errors)))),
            Ok(None) if stopped() => return Err(SetupError::Stopped),
            Ok(None) if Instant::now() > end => {
                return Err(failed(format!("did not end within {} minutes", STEP_MAX.as_secs() / 60)));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Err(e) => return Err(failed(e.to_string())),
        }
    }
}

/// Ended with all that it started when it is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None))
            && let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// A nameless file: a pipe that nobody reads would stop the command.
fn tempfile_for_errors() -> std::io::Result<fs::File> {
    Ok(rustix::fs::memfd_create("errors", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

/// The last lines of what was written there.
fn tail(mut file: fs::File) -> String {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.take(1 << 20).read_to_end(&mut bytes));
    let text = read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_one_version_and_a_licence() {
        let lines = REQUIREMENTS.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
        let packages = packages();
        assert_eq!(packages.len(), lines);
        assert!(packages.iter().all(|p| !p.version.is_empty() && p.licence.len() > 2));
        assert!(packages.iter().any(|p| p.name == "duckdb" && p.licence == "MIT"));
    }

    #[test]
    fn only_a_whole_environment_is_used_and_nothing_else_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "x").unwrap();
        assert!(matches!(setup(dir.path(), &|| false, &mut |_| ()), Err(SetupError::NotOurs(_))));
        assert!(python(dir.path()).unwrap_err().to_string().contains("lab workload setup --env"));
        fs::write(dir.path().join(MARK), "duckdb==0.1").unwrap();
        assert!(python(dir.path()).is_err());
        fs::write(dir.path().join(MARK), REQUIREMENTS).unwrap();
        assert!(python(dir.path()).unwrap().ends_with("bin/python3"));
    }

    #[test]
    fn a_command_that_fails_or_is_stopped_says_so() {
        let failed = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"]), &|| false);
        assert!(failed.unwrap_err().to_string().contains("no such thing"));
        assert!(matches!(run(Command::new("sleep").arg("60"), &|| true), Err(SetupError::Stopped)));
    }
}
