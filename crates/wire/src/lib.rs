//! Message and record formats. No I/O.

pub mod crc;
pub mod frame;
pub mod hello;
pub mod strip;
