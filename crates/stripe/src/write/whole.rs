//! A strip of a change made whole, for a pdisk that does not have what the change is based on.

use std::sync::Arc;

use base::{OpClass, StripeId, Version};
use wire::strip::{Range, VersionInfo};

use super::plan::{self, StripWrite};
use crate::{StripeError, StripeIo, compute::compute, meta::BlockMeta, pieces::Pieces, view::PoolView};

/// Strip `i` of the new version whole: what the block held before it, with the change laid over.
#[allow(clippy::too_many_arguments)]
pub async fn whole_strip(
    io: StripeIo,
    pool: Arc<PoolView>,
    stripe: StripeId,
    i: usize,
    info: VersionInfo,
    dirty: Vec<Range>,
    pieces: Pieces,
    previous: BlockMeta,
) -> Result<StripWrite, StripeError> {
    let (geometry, len) = (pool.geometry, info.len);
    let whole = if info.len == 0 { Vec::new() } else { vec![Range { offset: 0, len: info.len }] };
    let parity = !geometry.replicated() && i >= geometry.k();
    let wanted = if parity {
        geometry.rows_as_block(&whole)
    } else {
        whole.iter().map(|r| Range { offset: r.offset + geometry.start(i), len: r.len }).collect()
    };
    let old = if previous.data.iter().all(|v| *v == Some(Version::ZERO)) {
        Pieces::default()
    } else {
        Pieces::from_sorted(io.read(stripe, pool.id, &wanted, OpClass::Write).await?.pieces)
    };
    let content = old.overlay(&pieces, &dirty);
    let rows = if parity { geometry.k() } else { 1 };
    let work = move || {
        let (payload, crcs) = if parity {
            let all = plan::encode(geometry, &pool.codec, &io.shared.buffers, &content, &whole);
            let (bytes, crcs) = all.into_iter().nth(i - geometry.k()).unwrap_or_default();
            (if bytes.is_empty() { Vec::new() } else { vec![bytes] }, crcs)
        } else {
            content.payload(&whole, geometry.start(i))
        };
        StripWrite { info, base: None, ranges: whole, crcs, payload }
    };
    Ok(compute(u64::from(len) * rows as u64, work).await)
}
