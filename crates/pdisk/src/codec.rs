//! Little-endian writing and bounded reading of the records of this crate.
//! The reader never panics and never allocates more than its input justifies.

use base::{Grant, GroupId, PoolId, StripId, StripIndex, StripSet, StripeId, Version};
use wire::strip::VersionInfo;

/// Version of all formats of this crate.
pub(crate) const FORMAT: u16 = 1;

/// The bytes end too early or hold a value out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) type Decoded<T> = Result<T, Malformed>;

/// Appends fixed-width fields to a vector.
pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub fn bytes(&mut self, v: &[u8]) {
        self.0.extend_from_slice(v);
    }
    /// A list length: u16. The lists of this crate are bounded far below by `STRIP_LEN_MAX`.
    pub fn len(&mut self, n: usize) {
        self.u16(u16::try_from(n).expect("lists are bounded by the units of a strip"));
    }
    pub fn version(&mut self, v: Version) {
        self.u64(v.grant.0);
        self.u64(v.seq);
    }
    /// 0 or 1, then the version if 1.
    pub fn opt_version(&mut self, v: Option<Version>) {
        self.u8(v.is_some().into());
        if let Some(v) = v {
            self.version(v);
        }
    }
    /// fs u32, inode u64, block u64, index u8: 21 bytes.
    pub fn strip(&mut self, s: StripId) {
        self.u32(s.stripe.fs.0);
        self.u64(s.stripe.inode.0);
        self.u64(s.stripe.block.0);
        self.u8(s.index.0);
    }
    pub fn covers(&mut self, covers: &[Option<Version>]) {
        self.u8(u8::try_from(covers.len()).expect("a stripe has at most 32 strips"));
        for v in covers {
            self.opt_version(*v);
        }
    }
    pub fn info(&mut self, info: &VersionInfo) {
        self.version(info.version);
        self.u32(info.touched.0);
        self.u32(info.len);
        self.covers(&info.covers);
    }
}

/// Reads fixed-width fields from the front of a slice.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = tail;
        Ok(head)
    }
    pub fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }
    pub fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub fn flag(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
    /// A list of u16 length; `item_len_min` bounds what is allocated for it.
    pub fn list<T>(
        &mut self,
        item_len_min: usize,
        mut item: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        let n = self.u16()? as usize;
        if n * item_len_min > self.0.len() {
            return Err(Malformed);
        }
        let mut list = Vec::with_capacity(n);
        for _ in 0..n {
            list.push(item(self)?);
        }
        Ok(list)
    }
    pub fn version(&mut self) -> Decoded<Version> {
        Ok(Version { grant: Grant(self.u64()?), seq: self.u64()? })
    }
    pub fn opt_version(&mut self) -> Decoded<Option<Version>> {
        if self.flag()? { self.version().map(Some) } else { Ok(None) }
    }
    pub fn strip(&mut self) -> Decoded<StripId> {
        let stripe = StripeId {
            fs: base::FsId(self.u32()?),
            inode: base::InodeNo(self.u64()?),
            block: base::BlockIndex(self.u64()?),
        };
        Ok(stripe.strip(StripIndex(self.u8()?)))
    }
    pub fn covers(&mut self) -> Decoded<Vec<Option<Version>>> {
        let n = self.u8()?;
        (0..n).map(|_| self.opt_version()).collect()
    }
    pub fn info(&mut self) -> Decoded<VersionInfo> {
        Ok(VersionInfo {
            version: self.version()?,
            touched: StripSet(self.u32()?),
            len: self.u32()?,
            covers: self.covers()?,
        })
    }
    pub fn pool(&mut self) -> Decoded<PoolId> {
        self.u32().map(PoolId)
    }
    pub fn group(&mut self) -> Decoded<GroupId> {
        self.u32().map(GroupId)
    }
    pub fn end(&self) -> Decoded<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
