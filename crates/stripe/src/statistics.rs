//! What reading and writing stripes took beyond the ordinary, in the process's registry.

use std::sync::LazyLock;

use base::stats::{Counter, counter};

/// Reads that were decoded: strips were absent, damaged, late or out of reach.
pub static DECODED_READS: LazyLock<Counter> = LazyLock::new(|| counter("stripe_decoded_reads", &[]));
/// Strips that were late: others were asked for beside them.
pub static HEDGED_STRIPS: LazyLock<Counter> = LazyLock::new(|| counter("stripe_hedged_strips", &[]));
/// Reads of stripes that began again.
pub static READ_RETRIES: LazyLock<Counter> = LazyLock::new(|| counter("stripe_retries", &[("what", "read")]));
/// Strips that were sent again.
pub static WRITE_RETRIES: LazyLock<Counter> =
    LazyLock::new(|| counter("stripe_retries", &[("what", "write")]));

/// Shows them from now on, with nothing counted: who looks from outside sees the first event as one.
pub fn show() {
    for counter in [&DECODED_READS, &HEDGED_STRIPS, &READ_RETRIES, &WRITE_RETRIES] {
        LazyLock::force(counter);
    }
}
