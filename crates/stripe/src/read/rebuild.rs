//! One strip made anew from K others, for catch-up, repair and resolution. Sources are read at exactly
//! the versions that belong together, so that a write under way can fail a repair but never mix into it.

use base::{GroupId, OpClass, PoolId, StripIndex, StripeId, units::UNIT};
use bytes::Bytes;
use wire::strip::{PrepareStrip, Range, VersionInfo};

use super::block::{ReadSpec, Source};
use crate::{StripeError, StripeIo, compute::compute, pieces::Pieces, target::StripeTarget};

impl StripeIo {
    /// Makes strip `index` of `target` from other strips, or, unless its member is to be avoided, from there.
    /// The result is ready to be installed.
    #[expect(clippy::too_many_arguments, reason = "which strip, and how")]
    pub async fn rebuild_strip(
        &self,
        stripe: StripeId,
        pool: PoolId,
        group: GroupId,
        index: StripIndex,
        target: &StripeTarget,
        avoid: bool,
        class: OpClass,
    ) -> Result<(PrepareStrip, Vec<Bytes>), StripeError> {
        let view = self.view();
        let geometry = self.shared.pool(&view, pool)?.geometry;
        let i = usize::from(index.0);
        let parity = i >= geometry.k() && !geometry.replicated();
        let mut wanted = vec![Vec::new(); geometry.width()];
        if target.len > 0 {
            wanted[i].push(Range { offset: 0, len: target.len });
        }
        let avoid = avoid.then_some(index).into_iter().collect();
        let spec = ReadSpec { wanted, source: Source::Exact(target.clone()), avoid, class };
        let (plan, decoded) = self.read_strips(stripe, pool, &spec).await?;
        let pieces = match plan.copy() {
            Some(copy) if geometry.replicated() => plan.pieces(copy),
            _ => match decoded.into_iter().find(|(d, _)| *d == i) {
                Some((_, decoded)) => Pieces::from_sorted(decoded),
                None => plan.pieces(i),
            },
        };
        let bytes = target.len.into();
        let (payload, crcs, len) = compute(bytes, move || {
            let len = stored_len(&pieces);
            let all = if len == 0 { Vec::new() } else { vec![Range { offset: 0, len }] };
            let (payload, crcs) = pieces.payload(&all, 0);
            (payload, crcs, len)
        })
        .await;
        let version = target.version_of(index).unwrap_or(target.version);
        let mut touched = target.touched;
        if version != target.version {
            // An earlier version: what else it touched is not known here, but itself and all parity.
            touched = geometry.parity();
        }
        touched.insert(index);
        let info = VersionInfo {
            version,
            touched,
            len,
            covers: if parity { target.covers.clone() } else { Vec::new() },
        };
        let ranges = if len == 0 { Vec::new() } else { vec![Range { offset: 0, len }] };
        let strip = stripe.strip(index);
        Ok((PrepareStrip { strip, pool, group, info, base: None, adopt: None, ranges, crcs }, payload))
    }
}

/// The end of the last unit that is not zeros.
fn stored_len(pieces: &Pieces) -> u32 {
    for (offset, bytes) in pieces.list().iter().rev() {
        for (unit, part) in bytes.chunks(UNIT).enumerate().rev() {
            if part.iter().any(|b| *b != 0) {
                return offset + ((unit + 1) * UNIT) as u32;
            }
        }
    }
    0
}
