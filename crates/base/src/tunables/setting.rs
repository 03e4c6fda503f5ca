//! The types a tunable can have: how each is read, shown and bounded.

use std::{ops::RangeInclusive, time::Duration};

use crate::{CipherList, units::ByteSize};

/// A type of value.
pub(super) trait Setting: Copy + PartialEq {
    /// From text; the error says what is wrong with it, without repeating it.
    fn read(text: &str) -> Result<Self, String>;
    /// As `read` reads it.
    fn show(&self) -> String;
}

/// The allowed values of a row.
pub(super) trait Allowed<T> {
    fn allows(&self, value: &T) -> bool;
    fn text(&self) -> String;
}

impl<T: Setting + PartialOrd> Allowed<T> for RangeInclusive<T> {
    fn allows(&self, value: &T) -> bool {
        self.contains(value)
    }
    fn text(&self) -> String {
        format!("{} to {}", self.start().show(), self.end().show())
    }
}

impl<T: Setting, const N: usize> Allowed<T> for [T; N] {
    fn allows(&self, value: &T) -> bool {
        self.contains(value)
    }
    fn text(&self) -> String {
        self.iter().map(Setting::show).collect::<Vec<_>>().join(", ")
    }
}

impl Setting for u32 {
    fn read(text: &str) -> Result<u32, String> {
        text.parse().map_err(|_| "not a whole number".to_owned())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for ByteSize {
    fn read(text: &str) -> Result<ByteSize, String> {
        text.parse()
            .map_err(|_| "not a size; write a whole number with k, m, g or t (1m = 1048576)".to_owned())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for bool {
    fn read(text: &str) -> Result<bool, String> {
        match text.to_ascii_lowercase().as_str() {
            "yes" | "true" | "on" | "1" => Ok(true),
            "no" | "false" | "off" | "0" => Ok(false),
            _ => Err("neither yes nor no".to_owned()),
        }
    }
    fn show(&self) -> String {
        if *self { "yes" } else { "no" }.to_owned()
    }
}

impl Setting for Duration {
    fn read(text: &str) -> Result<Duration, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 =
            number.parse().map_err(|_| "not a duration; write 500us, 20ms, 10s or 2min".to_owned())?;
        let micros = match unit.trim().to_ascii_lowercase().as_str() {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" | "" => 1_000_000,
            "min" => 60_000_000,
            "h" => 3_600_000_000,
            _ => return Err("unknown unit of time; write us, ms, s, min or h".to_owned()),
        };
        number.checked_mul(micros).map(Duration::from_micros).ok_or_else(|| "too long".to_owned())
    }
    fn show(&self) -> String {
        let micros = self.as_micros();
        for (n, unit) in [(3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")] {
            if micros > 0 && micros.is_multiple_of(n) {
                return format!("{}{unit}", micros / n);
            }
        }
        if micros == 0 { "0s".to_owned() } else { format!("{micros}us") }
    }
}

/// A time as tunables and options have it: `20ms`, `10s`, `2min`, `1h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    Setting::read(text)
}

/// A tunable whose values are words.
pub trait Choice: Copy + PartialEq + 'static {
    /// Every value with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// The word of this value.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

impl<T: Choice> Setting for T {
    fn read(text: &str) -> Result<T, String> {
        let found = T::WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found.map(|(_, value)| *value).ok_or_else(|| "not one of the words".to_owned())
    }
    fn show(&self) -> String {
        self.word().to_owned()
    }
}

/// How pdisks do their I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoEngine {
    /// io_uring where it is allowed, else psync.
    Auto,
    /// io_uring, or refuse to start.
    IoUring,
    /// pread and pwrite on threads.
    Psync,
}

impl Choice for IoEngine {
    const WORDS: &'static [(&'static str, IoEngine)] =
        &[("auto", IoEngine::Auto), ("io_uring", IoEngine::IoUring), ("psync", IoEngine::Psync)];
}

/// How much a process says in its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What may need somebody.
    Warn,
    /// What happens to the process.
    Info,
    /// What it does, for who looks for a fault.
    Debug,
}

impl Choice for LogLevel {
    const WORDS: &'static [(&'static str, LogLevel)] = &[
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
    ];
}

/// How payloads that do not travel in the request do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferMode {
    /// The requester sends them, within its credit.
    Push,
    /// The receiver fetches them.
    Fetch,
}

impl Choice for TransferMode {
    const WORDS: &'static [(&'static str, TransferMode)] =
        &[("push", TransferMode::Push), ("fetch", TransferMode::Fetch)];
}

/// What connections within a machine go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportMode {
    /// Memory where it can be shared, else TCP.
    Auto,
    /// TCP.
    Tcp,
    /// Memory is tried whatever the addresses say.
    Shm,
}

impl Choice for TransportMode {
    const WORDS: &'static [(&'static str, TransportMode)] =
        &[("auto", TransportMode::Auto), ("tcp", TransportMode::Tcp), ("shm", TransportMode::Shm)];
}

/// `auto`, and every cipherList.
pub(super) const CIPHER_LISTS: [Option<CipherList>; 7] = [
    None,
    Some(CipherList::Empty),
    Some(CipherList::AuthOnly),
    Some(CipherList::Default),
    Some(CipherList::Aes128),
    Some(CipherList::Aes256),
    Some(CipherList::ChaCha20),
];

/// None is `auto`: as each machine's `cluster.toml` says.
impl Setting for Option<CipherList> {
    fn read(text: &str) -> Result<Option<CipherList>, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| "not one of the words".to_owned())
    }
    fn show(&self) -> String {
        self.map_or("auto", CipherList::name).to_owned()
    }
}

/// A number of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnCount {
    /// Found by measuring.
    Auto,
    /// This many.
    Count(u8),
}

impl Setting for ConnCount {
    fn read(text: &str) -> Result<ConnCount, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(ConnCount::Auto);
        }
        text.parse().map(ConnCount::Count).map_err(|_| "neither a whole number nor auto".to_owned())
    }
    fn show(&self) -> String {
        match self {
            ConnCount::Auto => "auto".to_owned(),
            ConnCount::Count(n) => n.to_string(),
        }
    }
}

impl std::fmt::Display for ConnCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.show())
    }
}

/// From 1 to a most, or auto.
pub(super) struct ConnCounts {
    pub max: u8,
}

impl Allowed<ConnCount> for ConnCounts {
    fn allows(&self, value: &ConnCount) -> bool {
        match value {
            ConnCount::Auto => true,
            ConnCount::Count(n) => (1..=self.max).contains(n),
        }
    }
    fn text(&self) -> String {
        format!("1 to {}, auto", self.max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_flags_and_words() {
        for (text, micros) in
            [("10s", 10_000_000), ("10", 10_000_000), ("20 ms", 20_000), ("7us", 7), ("2MIN", 120_000_000)]
        {
            assert_eq!(Duration::read(text).unwrap().as_micros(), micros, "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "3m", "99999999999999999999s", "9999999999999h"] {
            assert!(Duration::read(text).is_err(), "{text}");
        }
        assert_eq!((bool::read("Yes"), bool::read("off")), (Ok(true), Ok(false)));
        assert!(bool::read("maybe").is_err());
        assert_eq!(IoEngine::read("IO_URING"), Ok(IoEngine::IoUring));
        assert!(IoEngine::read("aio").is_err());
        assert_eq!(ConnCount::read("Auto"), Ok(ConnCount::Auto));
        assert_eq!(ConnCount::read("16"), Ok(ConnCount::Count(16)));
        for (name, value) in CipherList::NAMES {
            assert_eq!(Option::<CipherList>::read(name), Ok(Some(value)));
        }
        let allowed = ConnCounts { max: 16 };
        assert!(["0", "17"].iter().all(|n| !allowed.allows(&ConnCount::read(n).unwrap())));
        assert!(ConnCount::read("many").is_err() && ConnCount::read("256").is_err());
    }

    proptest! {
        #[test]
        fn durations_round_trip(
            micros in any::<u32>(),
            unit in prop::sample::select(vec![1u64, 1000, 1_000_000, 60_000_000]),
        ) {
            let duration = Duration::from_micros(u64::from(micros) * unit);
            prop_assert_eq!(Duration::read(&duration.show()), Ok(duration));
        }
    }
}
