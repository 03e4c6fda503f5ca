//! What bounds or delays an interface's sending: a discipline (tbf, netem) at its root. Taken away by tc, which leaves the kernel's own
//! one there, and put back. In a copy of a machine both are of the text that tc printed there.

use std::{fs, io, path::Path, time::Duration};

use crate::{
    host::{UNSHAPED as NONE, is_live, program, shaper_of as of},
    replace, shell,
};

/// How long tc may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What shows all disciplines: asked for one device alone it leaves the device out.
const SHOW: [&str; 3] = ["tc", "qdisc", "show"];

/// The command that makes it so.
pub(crate) fn command(device: &str, shaper: &str) -> String {
    words(device, shaper).into_iter().map(shell::word).collect::<Vec<_>>().join(" ")
}

fn words<'a>(device: &'a str, shaper: &'a str) -> Vec<&'a str> {
    if shaper == NONE {
        return vec!["tc", "qdisc", "del", "dev", device, "root"];
    }
    ["tc", "qdisc", "replace", "dev", device, "root"].into_iter().chain(shaper.split_whitespace()).collect()
}

/// What shapes it now.
///
/// # Errors
/// tc is not there, or what it shows could not be put back.
pub(crate) fn read(root: &Path, file: &str, device: &str) -> io::Result<String> {
    let listing = if is_live(root) {
        // It prints nothing where no interface has one.
        let nothing = || program::output(&["tc", "-V"]).map(|_| String::new());
        program::output(&SHOW).or_else(nothing).ok_or_else(|| io::Error::other("tc is not there"))?
    } else {
        fs::read_to_string(root.join(file))?
    };
    of(&listing, device)
        .ok_or_else(|| io::Error::other("there are disciplines below it that could not be put back"))
}

/// Takes it away, or puts one there.
///
/// # Errors
/// What tc said.
pub(crate) fn write(root: &Path, file: &str, device: &str, shaper: &str) -> io::Result<()> {
    if is_live(root) {
        return program::run(&words(device, shaper), PATIENCE).map_err(io::Error::other);
    }
    let path = root.join(file);
    let (kind, options) = match shaper.split_once(' ') {
        _ if shaper == NONE => ("noqueue", ""),
        Some(both) => both,
        None => (shaper, ""),
    };
    let is_root = |line: &str| matches!(line.split_whitespace().collect::<Vec<_>>()[..], ["qdisc", _, _, "dev", name, "root", ..] if name == device);
    let listing = fs::read_to_string(&path)?;
    let mut text: String =
        listing.lines().filter(|line| !is_root(line)).map(|line| format!("{line}\n")).collect();
    text.push_str(format!("qdisc {kind} 8001: dev {device} root refcnt 2 {options}").trim_end());
    text.push('\n');
    replace::replace(&path, &text, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shapes_is_what_tc_takes_again() {
        let listing = "qdisc noqueue 0: dev lo root refcnt 2 \n\
            qdisc tbf 8001: dev a root refcnt 2 rate 1Gbit burst 4Mb lat 50ms \n\
            qdisc ingress ffff: dev a parent ffff:fff1 ---------------- \n\
            qdisc netem 1: dev b root refcnt 2 limit 1000 delay 10ms loss 1%\n\
            qdisc fq_codel 8003: dev b parent 1:1 limit 10240p\n\
            qdisc mq 0: dev c root \nqdisc fq_codel 0: dev c parent :1 limit 10240p\n";
        let tbf = "tbf rate 1Gbit burst 4Mb lat 50ms";
        for (device, shaper) in [("lo", Some(NONE)), ("a", Some(tbf)), ("b", None), ("c", Some(NONE))] {
            assert_eq!(of(listing, device).as_deref(), shaper, "{device}");
        }
        assert_eq!(command("a", tbf), format!("tc qdisc replace dev a root {tbf}"));
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("x"), listing).unwrap();
        write(root.path(), "x", "a", NONE).unwrap();
        assert_eq!(read(root.path(), "x", "a").unwrap(), NONE);
        write(root.path(), "x", "a", tbf).unwrap();
        assert_eq!(read(root.path(), "x", "a").unwrap(), tbf);
        assert!(read(root.path(), "x", "b").unwrap_err().to_string().contains("below it"));
    }
}
