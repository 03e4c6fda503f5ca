//! Page pool, write-behind, prefetch, and POSIX calls over the network.
