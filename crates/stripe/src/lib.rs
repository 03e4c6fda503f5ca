//! One stripe over the network: write, read, decode, resolve.
