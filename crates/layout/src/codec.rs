//! Erasure coding over slices: systematic, byte for byte what ISA-L makes with its Cauchy matrix
//! (`gf_gen_cauchy1_matrix`, GF(2^8) with polynomial 0x11d). Copies for replication.
//!
//! Every byte position of a stripe is coded on its own, so any equal ranges of the strips can be given
//! instead of whole strips. A data strip shorter than its parity reads as zeros at its end: a short file
//! stores only the strips it has.
//!
//! Wrong counts or lengths of slices are mistakes of the caller and panic; too few strips are an error.

use base::{StripIndex, StripSet};
use rusty_erasure::{Coder, Matrix};
use thiserror::Error;

use crate::code::Code;

/// Fewer than K strips: the wanted ones cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("only {have} of the {need} strips that code {code} needs are there")]
pub struct TooFewStrips {
    /// The code.
    pub code: Code,
    /// Strips present.
    pub have: u32,
    /// K.
    pub need: u32,
}

/// Encoder and decoder of one code. Cheap to share by reference between threads; build it once a pool.
#[derive(Debug, Clone)]
pub struct Codec {
    code: Code,
    /// None for replication, which only copies.
    coder: Option<Coder>,
}

/// How to compute certain strips when certain others are present: the matrix work done once, for all
/// stripes with the same loss.
#[derive(Debug, Clone)]
pub struct DecodePlan {
    sources: StripSet,
    wanted: usize,
    plan: Option<rusty_erasure::DecodePlan>,
}

impl DecodePlan {
    /// The K strips it reads; the others need not be fetched.
    pub fn sources(&self) -> StripSet {
        self.sources
    }
}

/// Stands in for the absent end of short strips, this many bytes at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Codec {
    /// The codec of `code`.
    ///
    /// # Panics
    /// If `code` is not one of [`Code::ALL`] (a parsed code always is).
    pub fn new(code: Code) -> Codec {
        assert!(Code::ALL.contains(&code), "{code} is not one of {}", Code::list());
        let coder = match code {
            Code::Replicated(_) => None,
            Code::ReedSolomon { k, m } => Some(
                Matrix::cauchy(k.into(), m.into())
                    .and_then(rusty_erasure::coder)
                    .expect("every code of Code::ALL has a matrix"),
            ),
        };
        Codec { code, coder }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The parity rows of the matrix, row by row: M × K coefficients (ones for replication).
    pub fn parity_matrix(&self) -> Vec<u8> {
        match &self.coder {
            Some(coder) => coder.matrix().parity_bytes().to_vec(),
            None => vec![1; self.code.parity().into()],
        }
    }

    /// The instruction set in use, for reports: `scalar`, `avx2`, `gfni`, `neon`, `copy`, ...
    pub fn kernel(&self) -> &'static str {
        self.coder.as_ref().map_or("copy", |coder| coder.kernels().name)
    }

    /// Computes all parity strips (all further copies) of a stripe. `data` are the K data strips in
    /// order, none longer than the parity strips; what they lack in length counts as zeros.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), usize::from(self.code.data()), "data strips of {}", self.code);
        assert_eq!(parity.len(), usize::from(self.code.parity()), "parity strips of {}", self.code);
        let Some(len) = common_len(parity) else { return };
        assert!(data.iter().all(|strip| strip.len() <= len), "a data strip is longer than the parity");
        match &self.coder {
            Some(coder) => in_runs(data, parity, |data, parity| {
                coder.encode(data, parity).expect("counts and lengths are checked above");
            }),
            None => parity.iter_mut().for_each(|copy| copy_extended(data[0], copy)),
        }
    }

    /// Adds a change of one data strip to the parity: `delta` is old bytes xor new bytes of strip
    /// `index`, each of `parity` the same range of a parity strip. On zeroed buffers it gives what has
    /// to be xored into the parity elsewhere.
    pub fn update(&self, index: StripIndex, delta: &[u8], parity: &mut [&mut [u8]]) {
        assert!(self.code.is_data(index), "{index} of {} is no data strip", self.code);
        assert_eq!(parity.len(), usize::from(self.code.parity()), "parity strips of {}", self.code);
        let Some(len) = common_len(parity) else { return };
        assert_eq!(delta.len(), len, "the delta is as long as the parity");
        match &self.coder {
            Some(coder) => {
                coder.update(index.0.into(), delta, parity).expect("counts and lengths are checked above")
            }
            None => parity.iter_mut().for_each(|copy| xor(delta, copy)),
        }
    }

    /// Whether `parity` is what `data` encodes to (lengths as in [`Codec::encode`]).
    pub fn verify(&self, data: &[&[u8]], parity: &[&[u8]]) -> bool {
        let mut fresh: Vec<Vec<u8>> = parity.iter().map(|strip| vec![0; strip.len()]).collect();
        let mut views: Vec<&mut [u8]> = fresh.iter_mut().map(Vec::as_mut_slice).collect();
        self.encode(data, &mut views);
        fresh.iter().zip(parity).all(|(fresh, strip)| fresh.as_slice() == *strip)
    }

    /// Prepares to compute `wanted` from the first K strips of `present`.
    pub fn plan(&self, present: StripSet, wanted: &[StripIndex]) -> Result<DecodePlan, TooFewStrips> {
        let width = self.code.width();
        assert!(wanted.iter().all(|i| i.0 < width), "{wanted:?} of {}", self.code);
        let need = u32::from(self.code.data());
        let present: Vec<StripIndex> = present.iter().filter(|i| i.0 < width).collect();
        let too_few = TooFewStrips { code: self.code, have: present.len() as u32, need };
        let sources: StripSet = present.iter().copied().take(need as usize).collect();
        if sources.count() < need {
            return Err(too_few);
        }
        let plan = match &self.coder {
            None => None,
            Some(coder) => {
                let there: Vec<bool> = (0..width).map(|i| sources.contains(StripIndex(i))).collect();
                let rebuild: Vec<usize> = wanted.iter().map(|i| i.0.into()).collect();
                Some(coder.decode_plan(&there, &rebuild).map_err(|_| too_few)?)
            }
        };
        Ok(DecodePlan { sources, wanted: wanted.len(), plan })
    }

    /// Computes what `plan` wants into `out`, in the order it was given. `present` has K+M places; those
    /// of the plan's sources must be filled. A source shorter than `out` reads as zeros at its end; of a
    /// longer one the beginning is used.
    pub fn reconstruct_with(&self, plan: &DecodePlan, present: &[Option<&[u8]>], out: &mut [&mut [u8]]) {
        let width = usize::from(self.code.width());
        assert_eq!(present.len(), width, "places of {}", self.code);
        assert_eq!(out.len(), plan.wanted, "one buffer for each wanted strip");
        let sources: Vec<&[u8]> = plan
            .sources
            .iter()
            .map(|i| present[usize::from(i.0)].expect("a source of the plan is present"))
            .collect();
        if common_len(out).is_none() {
            return;
        }
        match (&self.coder, &plan.plan) {
            (Some(coder), Some(decode)) => in_runs(&sources, out, |sources, out| {
                let mut places = vec![None; width];
                for (i, source) in plan.sources.iter().zip(sources) {
                    places[usize::from(i.0)] = Some(*source);
                }
                coder.recover_with(decode, &places, out).expect("counts and lengths are checked above");
            }),
            _ => out.iter_mut().for_each(|copy| copy_extended(sources[0], copy)),
        }
    }

    /// Computes the strips `wanted` (data or parity) from any K that are present. See
    /// [`Codec::reconstruct_with`] for lengths; for many stripes with one loss make a [`Codec::plan`].
    pub fn reconstruct(
        &self,
        present: &[Option<&[u8]>],
        wanted: &[StripIndex],
        out: &mut [&mut [u8]],
    ) -> Result<(), TooFewStrips> {
        assert_eq!(present.len(), usize::from(self.code.width()), "places of {}", self.code);
        let set = (0u8..).zip(present).filter(|(_, p)| p.is_some()).map(|(i, _)| StripIndex(i)).collect();
        let plan = self.plan(set, wanted)?;
        self.reconstruct_with(&plan, present, out);
        Ok(())
    }
}

/// The length all of `strips` have; `None` if there is none or it is 0.
fn common_len(strips: &[&mut [u8]]) -> Option<usize> {
    let len = strips.first()?.len();
    assert!(strips.iter().all(|strip| strip.len() == len), "strips of different lengths");
    (len > 0).then_some(len)
}

/// Calls `kernel` on ranges in which every source either has bytes or is all zeros.
fn in_runs(sources: &[&[u8]], out: &mut [&mut [u8]], mut kernel: impl FnMut(&[&[u8]], &mut [&mut [u8]])) {
    let len = out[0].len();
    if sources.iter().all(|source| source.len() == len) {
        return kernel(sources, out);
    }
    let mut start = 0;
    while start < len {
        let cut = sources.iter().map(|s| s.len()).filter(|&l| l > start).min().unwrap_or(len).min(len);
        let zeros_needed = sources.iter().any(|s| s.len() <= start);
        let end = if zeros_needed { cut.min(start + ZEROS.len()) } else { cut };
        let part: Vec<&[u8]> = sources
            .iter()
            .map(|s| if s.len() >= end { &s[start..end] } else { &ZEROS[..end - start] })
            .collect();
        let mut out_part: Vec<&mut [u8]> = out.iter_mut().map(|o| &mut o[start..end]).collect();
        kernel(&part, &mut out_part);
        start = end;
    }
}

fn copy_extended(from: &[u8], to: &mut [u8]) {
    let n = from.len().min(to.len());
    to[..n].copy_from_slice(&from[..n]);
    to[n..].fill(0);
}

fn xor(delta: &[u8], into: &mut [u8]) {
    into.iter_mut().zip(delta).for_each(|(byte, d)| *byte ^= d);
}
