//! Calls and requests: a call's way to its reply (`calling`, over the bookkeeping of `pending`), a request's way to its handler
//! (`dispatch`, over that of `inbound` and `once`), and what both carry.

pub(crate) mod call;
pub(crate) mod calling;
pub(crate) mod dispatch;
pub(crate) mod handler;
pub(crate) mod idmap;
pub(crate) mod inbound;
pub(crate) mod once;
pub(crate) mod payload;
pub(crate) mod pending;
pub(crate) mod response;
pub(crate) mod service;
pub(crate) mod services;
