//! The endpoints of a test.

use super::error::NetperfError;
use super::message::CLUSTER;
use crate::key;

/// What all of netperf's endpoints have in common.
pub(super) fn endpoint_config() -> Result<net::EndpointConfig, NetperfError> {
    let (cluster, identity) = (CLUSTER, Some(key::identity(CLUSTER)?));
    // It measures the network. What encryption costs is measured where the other side asks for it.
    Ok(net::EndpointConfig {
        cluster,
        identity,
        // The side that connects says by what.
        transport: net::Transport::Auto,
        cipher_list: base::CipherList::Empty,
        role: net::Role::Lab,
        ..net::EndpointConfig::default()
    })
}
