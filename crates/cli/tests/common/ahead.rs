//! A clock that is ahead, for what is started with it.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A library, made in `place`: who is started with it as `LD_PRELOAD` finds the system's clock so many seconds ahead. All other clocks
/// are as they are.
pub fn clock(place: &Path, seconds: u64) -> PathBuf {
    let (source, library) = (place.join("ahead.c"), place.join("ahead.so"));
    let text = format!(
        "#define _GNU_SOURCE\n#include <time.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n\
         int clock_gettime(clockid_t id, struct timespec *t) {{\n\
         \tlong failed = syscall(SYS_clock_gettime, id, t);\n\
         \tif (!failed && id == CLOCK_REALTIME) t->tv_sec += {seconds};\n\treturn failed;\n}}\n"
    );
    fs::write(&source, text).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.unwrap().success());
    library
}
