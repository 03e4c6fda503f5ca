//! Namespace, sessions, cluster map over an ordered transactional store.
