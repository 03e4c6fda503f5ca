//! Message and record formats. No I/O.
//!
//! A frame ([`frame`]) carries an introduction ([`hello`]) or a message of one service: [`mgr`] (manager),
//! [`nsd`] (NSD server), [`admin`] (every process). [`strip`] and [`map`] are the records in them.

#![forbid(unsafe_code)]

pub mod admin;
pub mod blocks;
pub mod crc;
pub mod credentials;
pub mod frame;
pub mod hello;
pub mod join;
pub mod lock;
pub mod lock_set;
pub mod map;
pub mod mgr;
pub mod nsd;
pub mod owned;
pub mod strip;
pub mod token;
pub mod version;
