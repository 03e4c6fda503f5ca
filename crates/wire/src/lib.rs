//! Message and record formats. No I/O.

pub mod crc;
pub mod strip;
