//! This machine's name.

/// What this machine is called: the first part of its name.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let first: String = name.split('.').next().unwrap_or_default().chars().take(63).collect();
    if first.is_empty() { "node".to_owned() } else { first }
}
