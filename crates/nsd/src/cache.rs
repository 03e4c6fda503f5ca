//! Strips in the server's memory (`nsdBufSpace` of `pagepool`): what was read from a pdisk stays until room
//! is needed, and is read again without the disk.
//!
//! Owns: bytes of adopted strip versions with the CRCs their writer computed, by pdisk, strip and version.
//! Invariant: a version's bytes never change, so an entry is right as long as its version is asked for; the
//! pdisk says at every read which version that is and that it is whole ([`Pdisk::state`], from memory).
//! What was overwritten is thus never found again, and goes like everything else that nobody asks for.
//! Bounded by bytes; one strip's ranges are one entry, each with a buffer of its own. Least recently used goes
//! first. A strip is kept when it is read for the second time: what is read once costs no copy (the bytes must
//! leave the pdisk's I/O memory, which is small) and pushes out nothing. Nor does what is read over and over
//! but does not fit ([`State::again`]).

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

use base::{
    PdiskId, StripId, Version,
    stats::{Counter, counter},
    units::UNIT,
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use wire::strip::{Range, ReadStrip, ReadVersion, STRIP_LEN_MAX, StripRead, StripState, VersionInfo};

/// Bytes of a part beside its data: keys, lists, CRCs.
const PART_BYTES: u64 = 256;

/// What is in it, and how often it had what was wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheUse {
    /// Bytes it may hold.
    #[serde(rename = "max_bytes")]
    pub bytes_max: u64,
    /// Bytes it holds.
    #[serde(rename = "used_bytes")]
    pub used: u64,
    /// Strips of which it holds something.
    pub strips: u64,
    /// Bytes of reads that came from it.
    pub hit_bytes: u64,
    /// Bytes of reads that came from a pdisk.
    pub miss_bytes: u64,
}

type Key = (PdiskId, StripId);

/// Whole units of one version.
struct Part {
    bytes: Bytes,
    crcs: Vec<u32>,
}

struct Entry {
    info: VersionInfo,
    /// By their offset.
    parts: BTreeMap<u32, Part>,
    cost: u64,
    used: u64,
}

static HIT_BYTES: LazyLock<Counter> = LazyLock::new(|| counter("nsd_cache_bytes", &[("how", "hit")]));
static MISS_BYTES: LazyLock<Counter> = LazyLock::new(|| counter("nsd_cache_bytes", &[("how", "miss")]));
static BY_REASON: LazyLock<[Counter; 6]> = LazyLock::new(|| {
    ["first", "second", "changed", "far", "large", "off"]
        .map(|reason| counter("nsd_cache_miss_bytes", &[("reason", reason)]))
});

/// Why a read was not answered from here; numbers of [`BY_REASON`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Miss {
    /// It was not read for as long as is remembered.
    First,
    /// It is kept from now on.
    Second,
    /// An older version of the strip is here.
    Changed,
    /// More was read since than fits.
    Far,
    /// It would take more than a quarter of all room.
    Large,
    /// There is no room at all.
    Off,
}

#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// By the time of the last use; times are unique.
    order: BTreeMap<u64, Key>,
    /// Reads of late, by where they began: how much had been read then. In two generations.
    seen: [HashMap<(Key, u32), u64>; 2],
    time: u64,
    bytes_max: u64,
    used: u64,
    hits: u64,
    misses: u64,
}

/// See the file's head.
#[derive(Default)]
pub struct Cache(Mutex<State>);

impl Cache {
    /// Changes its bound; what is above it goes. 0 turns it off.
    pub fn resize(&self, bytes_max: u64) {
        // Shown from now on, with nothing counted.
        LazyLock::force(&HIT_BYTES);
        LazyLock::force(&MISS_BYTES);
        LazyLock::force(&BY_REASON);
        let mut state = self.0.lock();
        state.bytes_max = bytes_max;
        state.shrink();
    }

    /// What is in it.
    pub fn usage(&self) -> CacheUse {
        let state = self.0.lock();
        CacheUse {
            bytes_max: state.bytes_max,
            used: state.used,
            strips: state.entries.len() as u64,
            hit_bytes: state.hits,
            miss_bytes: state.misses,
        }
    }

    /// Whether it holds anything of a strip: if not, its state need not be asked for.
    pub fn has(&self, pdisk: PdiskId, strip: StripId) -> bool {
        self.0.lock().entries.contains_key(&(pdisk, strip))
    }

    /// The answer to a read, if all of it is here; `now` is what the pdisk says of the strip. `None` as well for what no pdisk
    /// would answer (ranges that are not of whole units, more than [`STRIP_LEN_MAX`] in all): the pdisk says so.
    pub fn get(&self, pdisk: PdiskId, read: &ReadStrip, now: &StripState) -> Option<(StripRead, Bytes)> {
        let info = now.adopted.as_ref().filter(|_| !now.lost)?;
        if matches!(read.version, ReadVersion::Exactly(version) if version != info.version) {
            return None;
        }
        let mut state = self.0.lock();
        let State { entries, order, time, hits, .. } = &mut *state;
        let entry = entries.get_mut(&(pdisk, read.strip)).filter(|e| e.info.version == info.version)?;
        let mut ranges = Vec::with_capacity(read.ranges.len());
        let (mut crcs, mut pieces) = (Vec::new(), Vec::new());
        let mut total = 0;
        for range in &read.ranges {
            if !range.offset.is_multiple_of(UNIT as u32) || !range.len.is_multiple_of(UNIT as u32) {
                return None;
            }
            let range = Range { len: range.len.min(info.len.saturating_sub(range.offset)), ..*range };
            if range.len == 0 {
                continue;
            }
            total += range.len;
            if total > STRIP_LEN_MAX {
                return None;
            }
            let (bytes, of) = entry.cut(range)?;
            ranges.push(range);
            crcs.extend_from_slice(of);
            pieces.push(bytes);
        }
        order.remove(&entry.used);
        *time += 1;
        entry.used = *time;
        order.insert(*time, (pdisk, read.strip));
        let payload = if pieces.len() == 1 { pieces.remove(0) } else { pieces.concat().into() };
        *hits += payload.len() as u64;
        HIT_BYTES.add(payload.len() as u64);
        // As the pdisk has it now: adopting changes nothing of it but what is said beside the version.
        Some((StripRead { info: info.clone(), ranges, crcs }, payload))
    }

    /// A pdisk gave this: kept if it is not the first time.
    pub fn put(&self, pdisk: PdiskId, strip: StripId, read: &StripRead, payload: &Bytes) {
        let key = (pdisk, strip);
        let offset = read.ranges.first().map_or(0, |range| range.offset);
        let len = payload.len() as u64;
        if len == 0 {
            return;
        }
        let why = self.0.lock().missed((key, offset), read.info.version, len);
        MISS_BYTES.add(len);
        BY_REASON[why as usize].add(len);
        if !matches!(why, Miss::Second | Miss::Changed) {
            return;
        }
        let (mut at, mut unit) = (0, 0);
        let part = |&range: &Range| {
            let (bytes, crcs) = (at..at + range.len as usize, unit..unit + range.units());
            (at, unit) = (bytes.end, crcs.end);
            let (bytes, crcs) = (payload.get(bytes)?, read.crcs.get(crcs)?);
            Some((range, Part { bytes: Bytes::copy_from_slice(bytes), crcs: crcs.to_vec() }))
        };
        let parts: Vec<_> = read.ranges.iter().filter_map(part).collect();
        if parts.is_empty() {
            return;
        }
        let mut state = self.0.lock();
        if state.entries.get(&key).is_some_and(|e| e.info.version != read.info.version) {
            state.remove(key);
        }
        state.time += 1;
        let time = state.time;
        let State { entries, order, used, .. } = &mut *state;
        let entry = entries.entry(key).or_insert_with(|| Entry {
            info: read.info.clone(),
            parts: BTreeMap::new(),
            cost: 0,
            used: time,
        });
        order.remove(&entry.used);
        entry.used = time;
        order.insert(time, key);
        for (range, part) in parts {
            if entry.cut(range).is_none() {
                let more = part.cost();
                let less = entry.parts.insert(range.offset, part).map_or(0, |shorter| shorter.cost());
                entry.cost = entry.cost + more - less;
                *used = *used + more - less;
            }
        }
        state.shrink();
    }

    /// Somebody got wrong bytes of a strip: what is kept of it goes.
    pub fn forget(&self, pdisk: PdiskId, strip: StripId) {
        self.0.lock().remove((pdisk, strip));
    }
}

impl Part {
    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + PART_BYTES
    }
}

impl Entry {
    /// Bytes and CRCs of a range that lies in one part.
    fn cut(&self, range: Range) -> Option<(Bytes, &[u32])> {
        let (&start, part) = self.parts.range(..=range.offset).next_back()?;
        let at = (range.offset - start) as usize;
        let end = at + range.len as usize;
        if end > part.bytes.len() {
            return None;
        }
        Some((part.bytes.slice(at..end), part.crcs.get(at / UNIT..end / UNIT)?))
    }
}

impl State {
    /// Counts a read that was not answered from here.
    fn missed(&mut self, read: (Key, u32), version: Version, len: u64) -> Miss {
        self.misses += len;
        let changed = self.entries.get(&read.0).is_some_and(|entry| entry.info.version != version);
        match self.bytes_max {
            0 => Miss::Off,
            most if len > most / 4 => Miss::Large,
            _ => match self.again(read) {
                Miss::Second if changed => Miss::Changed,
                why => why,
            },
        }
    }

    /// [`Miss::Second`]: no more was read since it was read last than the cache holds; from now on that is now. Who goes through
    /// more than that over and over would each time push out what he comes to next.
    fn again(&mut self, read: (Key, u32)) -> Miss {
        let now = self.hits + self.misses;
        let last = self.seen.iter().find_map(|seen| seen.get(&read)).copied();
        if self.seen[0].len() as u64 >= self.bytes_max / UNIT as u64 {
            self.seen.swap(0, 1);
            self.seen[0].clear();
        }
        self.seen[0].insert(read, now);
        match last {
            None => Miss::First,
            Some(last) if now - last > self.bytes_max => Miss::Far,
            Some(_) => Miss::Second,
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(&key) {
            self.order.remove(&entry.used);
            self.used -= entry.cost;
        }
    }

    fn shrink(&mut self) {
        while self.used > self.bytes_max {
            let Some((_, key)) = self.order.first_key_value() else { return };
            self.remove(*key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(inode: u64) -> StripId {
        let mut strip = StripId::default();
        strip.stripe.inode = base::InodeNo(inode);
        strip
    }

    fn info(seq: u64) -> VersionInfo {
        let version = Version { seq, ..Version::default() };
        VersionInfo { version, len: 65536, ..VersionInfo::default() }
    }

    fn adopted(inode: u64, seq: u64) -> StripState {
        StripState { strip: strip(inode), adopted: Some(info(seq)), ..StripState::default() }
    }

    fn ask(inode: u64, offset: u32, len: u32) -> ReadStrip {
        ReadStrip { strip: strip(inode), version: ReadVersion::Adopted, ranges: vec![Range { offset, len }] }
    }

    /// What a pdisk would give: the unit's number as its bytes and as its CRC.
    fn given(seq: u64, offset: u32, len: u32) -> (StripRead, Bytes) {
        let units = offset / 4096..(offset + len) / 4096;
        let bytes: Vec<u8> = units.clone().flat_map(|u| [u as u8; 4096]).collect();
        (
            StripRead { info: info(seq), ranges: vec![Range { offset, len }], crcs: units.collect() },
            bytes.into(),
        )
    }

    const PDISK: PdiskId = PdiskId(1);

    fn put(cache: &Cache, inode: u64, seq: u64, offset: u32, len: u32) {
        let (read, payload) = given(seq, offset, len);
        (0..2).for_each(|_| cache.put(PDISK, strip(inode), &read, &payload));
    }

    fn filled(bytes_max: u64) -> Cache {
        let cache = Cache::default();
        cache.resize(bytes_max);
        put(&cache, 1, 1, 0, 65536);
        cache
    }

    #[test]
    fn what_is_read_once_is_not_kept() {
        let cache = filled(1 << 20);
        for inode in 100..1000 {
            let (read, payload) = given(1, 0, 65536);
            cache.put(PDISK, strip(inode), &read, &payload);
        }
        assert_eq!(cache.usage().strips, 1);
        assert!(cache.get(PDISK, &ask(1, 0, 65536), &adopted(1, 1)).is_some());
    }

    #[test]
    fn what_fits_is_kept_at_the_second_reading_and_what_does_not_is_never_copied() {
        for (strips, kept) in [(15, 15), (16 * 3, 0)] {
            let cache = Cache::default();
            cache.resize(1 << 20);
            for inode in (0..strips).chain(0..strips).chain(0..strips) {
                let (read, payload) = given(1, 0, 65536);
                cache.put(PDISK, strip(inode), &read, &payload);
            }
            assert_eq!(cache.usage().strips, kept, "of {strips}");
        }
    }

    #[test]
    fn every_miss_has_its_reason() {
        let cache = filled(1 << 20);
        let missed = |inode, seq, len| {
            let version = Version { seq, ..Version::default() };
            cache.0.lock().missed(((PDISK, strip(inode)), 0), version, len)
        };
        assert_eq!(missed(2, 1, 300 << 10), Miss::Large);
        assert_eq!([missed(2, 1, 4096), missed(2, 1, 4096)], [Miss::First, Miss::Second]);
        assert_eq!([missed(1, 1, 4096), missed(1, 2, 4096)], [Miss::Second, Miss::Changed]);
        (100..105).for_each(|inode| assert_eq!(missed(inode, 1, 256 << 10), Miss::First));
        assert_eq!(missed(2, 1, 4096), Miss::Far);
        cache.resize(0);
        assert_eq!(missed(2, 1, 4096), Miss::Off);
    }

    #[test]
    fn a_part_comes_with_its_crcs_and_cut_to_the_strip() {
        let cache = filled(1 << 20);
        let (read, payload) = cache.get(PDISK, &ask(1, 8192, 8192), &adopted(1, 1)).unwrap();
        assert_eq!((read.crcs, payload[0], payload[8191]), (vec![2, 3], 2, 3));
        let (read, payload) = cache.get(PDISK, &ask(1, 61440, 65536), &adopted(1, 1)).unwrap();
        assert_eq!((read.ranges[0].len, payload.len()), (4096, 4096));
        assert_eq!(cache.usage().hit_bytes, 8192 + 4096);
    }

    /// The pdisk says what is wrong with it: one small request must not make the server build gigabytes.
    #[test]
    fn what_no_pdisk_would_answer_is_not_answered_from_here() {
        let cache = filled(1 << 20);
        let ranges =
            |n: usize| ReadStrip { ranges: vec![Range { offset: 0, len: 65536 }; n], ..ask(1, 0, 0) };
        let (_, payload) = cache.get(PDISK, &ranges(256), &adopted(1, 1)).unwrap();
        assert_eq!(payload.len(), STRIP_LEN_MAX as usize);
        assert!(cache.get(PDISK, &ranges(257), &adopted(1, 1)).is_none());
        let clipped = Range { offset: 0, len: u32::MAX - 4095 };
        let clipped = ReadStrip { ranges: vec![clipped; 1024], ..ask(1, 0, 0) };
        assert!(cache.get(PDISK, &clipped, &adopted(1, 1)).is_none());
        // Bytes of one unit would come with the CRC of another.
        for (offset, len) in [(512, 4096), (0, 512), (4095, 1), (65535, 4096)] {
            assert!(cache.get(PDISK, &ask(1, offset, len), &adopted(1, 1)).is_none(), "{offset} {len}");
        }
    }

    #[test]
    fn a_part_that_a_longer_one_replaces_takes_no_room_any_more() {
        let cache = Cache::default();
        cache.resize(1 << 20);
        for len in (1..=16).map(|units| units * 4096) {
            put(&cache, 1, 1, 0, len);
        }
        assert_eq!(cache.usage().used, 65536 + PART_BYTES);
        cache.forget(PDISK, strip(1));
        assert_eq!(cache.usage().used, 0);
    }

    #[test]
    fn only_the_version_the_pdisk_names_and_only_if_it_is_whole() {
        let cache = filled(1 << 20);
        let wanted = ask(1, 0, 4096);
        assert!(cache.get(PDISK, &wanted, &adopted(1, 2)).is_none(), "overwritten");
        assert!(cache.get(PDISK, &wanted, &StripState { lost: true, ..adopted(1, 1) }).is_none());
        assert!(cache.get(PDISK, &wanted, &StripState::default()).is_none(), "deleted");
        assert!(cache.get(PdiskId(2), &wanted, &adopted(1, 1)).is_none());
        let other = ReadStrip { version: ReadVersion::Exactly(info(2).version), ..wanted.clone() };
        assert!(cache.get(PDISK, &other, &adopted(1, 1)).is_none());
        put(&cache, 1, 2, 0, 4096);
        assert!(cache.get(PDISK, &wanted, &adopted(1, 2)).is_some());
        assert!(cache.get(PDISK, &ask(1, 4096, 4096), &adopted(1, 2)).is_none(), "of the old version");
    }

    #[test]
    fn it_is_bounded_and_what_is_used_stays() {
        let cache = filled(1 << 20);
        for inode in 2..200 {
            put(&cache, inode, 1, 0, 65536);
            assert!(cache.get(PDISK, &ask(1, 0, 4096), &adopted(1, 1)).is_some(), "after {inode}");
            assert!(cache.usage().used <= 1 << 20);
        }
        assert_eq!(cache.usage().strips, 15);
        cache.resize(0);
        assert_eq!((cache.usage().used, cache.usage().strips), (0, 0));
    }

    #[test]
    fn small_parts_of_a_strip_do_not_pile_up() {
        let cache = filled(1 << 20);
        for _ in 0..100 {
            (0..16).for_each(|unit| put(&cache, 2, 1, unit * 4096, 4096));
        }
        assert_eq!(cache.usage().used, 65536 + 256 + 16 * (4096 + 256));
    }

    #[test]
    fn what_gave_wrong_bytes_is_forgotten() {
        let cache = filled(1 << 20);
        cache.forget(PDISK, strip(1));
        assert!(cache.get(PDISK, &ask(1, 0, 4096), &adopted(1, 1)).is_none());
        assert_eq!(cache.usage().used, 0);
    }
}
