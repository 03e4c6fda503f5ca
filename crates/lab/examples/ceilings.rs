//! Prints this machine's raw ceilings: `cargo run --release -p ropewalk-lab --example ceilings -- DIR [SIZE]`.
#![allow(clippy::print_stdout)]

use std::{path::Path, time::Duration};

use lab::ceiling::{disk, loopback_tcp};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| ".".to_owned());
    let size: base::ByteSize = arguments.next().unwrap_or_else(|| "1g".to_owned()).parse()?;
    for connections in [1, 2, 4] {
        println!(
            "loopback TCP, {connections} connections: {}",
            loopback_tcp(Duration::from_secs(2), connections)?
        );
    }
    let (write, read) = disk(Path::new(&dir), size.0)?;
    println!("{dir}, write {size}: {} (O_DIRECT: {})", write.rate, write.direct);
    println!("{dir}, read {size}: {} (O_DIRECT: {})", read.rate, read.direct);
    Ok(())
}
