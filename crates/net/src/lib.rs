//! Connection groups: requests and payloads between nodes, with deadlines.
