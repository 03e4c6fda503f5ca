//! The beginning of a connection whose handshake is done.

use std::sync::Arc;

use crate::{
    calls::services::Services,
    connections::{conn::Conn, group::Group, handshake::Accepted, reader, socket::Socket, writer},
};

/// Adds it to its group and starts its tasks. `rail`: this side connected.
pub(crate) fn run(
    services: &Arc<Services>,
    group: &Arc<Group>,
    socket: Socket,
    rail: Option<usize>,
    accepted: &Accepted,
) -> std::io::Result<()> {
    let conn = Conn::new(group, socket, rail, accepted)?;
    let core = &group.core;
    if !conn.dialed {
        core.count_accepted(true);
    }
    tracing::debug!(conn = conn.id, peer = %conn.peer_name(), lane = ?conn.lane, "connected");
    group.add(&conn, accepted);
    // It may have been shut out since it was judged, and its authority with it.
    group.close_if_shut_out();
    conn.close_if_of_former_authority();
    core.runtime.spawn(reader::run(Arc::clone(&conn), Arc::clone(services)));
    core.runtime.spawn(writer::run(conn));
    Ok(())
}
