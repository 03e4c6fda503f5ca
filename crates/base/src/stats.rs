//! The one registry of counters, gauges and latency histograms of a process.
