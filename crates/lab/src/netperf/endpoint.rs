//! The endpoints of a test.

use super::message::CLUSTER;
use crate::key::{self, KeyError};

/// What all of netperf's endpoints have in common.
pub(super) fn endpoint_config() -> Result<net::EndpointConfig, KeyError> {
    let (cluster, secret) = (CLUSTER, Some(key::secret()?));
    Ok(net::EndpointConfig { cluster, secret, role: net::Role::Lab, ..net::EndpointConfig::default() })
}
