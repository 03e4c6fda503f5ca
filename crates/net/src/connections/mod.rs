//! Connections to other processes: how they are made and accepted, kept, spread over links, and ended. A group holds all
//! those to one process. From below to above: `gmac`, `records` with
//! `rest` and `pieces`, `memory`, `bell`, `shared`, `meeting`, `socket`, `tls` and `handshake`; `outbox`, `trickle`, `conn` and `group`; `reader` and `writer`; `start`; `dial`; `place`;
//! `keeper`; `groups`; `exchange`; `accept`.

pub(crate) mod accept;
pub(crate) mod auto;
pub(crate) mod bell;
pub(crate) mod conn;
pub(crate) mod dial;
pub(crate) mod exchange;
pub(crate) mod gmac;
pub(crate) mod group;
pub(crate) mod groups;
pub(crate) mod handshake;
pub(crate) mod handshake_error;
pub(crate) mod keeper;
pub(crate) mod meeting;
pub(crate) mod memory;
pub(crate) mod outbox;
pub(crate) mod parting;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod reader;
pub(crate) mod records;
pub(crate) mod refused;
pub(crate) mod shared;
pub(crate) mod socket;
pub(crate) mod start;
pub(crate) mod tls;
pub(crate) mod trickle;
pub(crate) mod watch;
pub(crate) mod writer;
