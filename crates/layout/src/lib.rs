//! Erasure codes, layout tables and placement: pure computation.
