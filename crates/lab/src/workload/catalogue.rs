//! The catalogue of the workload: every test and every input, as `workload/catalogue.toml` has them.

use std::sync::LazyLock;

use base::ByteSize;
use serde::{Deserialize, Serialize};

const TEXT: &str = include_str!("../../workload/catalogue.toml");

/// Jobs in a round of the two forms, and those that run at a time. By the orders of the tests that is also the average, if all jobs
/// take equally long.
pub const CONCURRENCY: [u32; 2] = [71, 101];
/// Bytes that sorting may take at scale 1 (SORTSIZE of the source).
const SORT_BYTES: f64 = 4e9;

/// Inputs and tests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Files that are made from the seed.
    pub input: Vec<Input>,
    /// The tests, by class.
    pub test: Vec<Test>,
}

/// A file that is made from the seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// 10^9 bytes at scale 1.
    pub gb: f64,
    /// Bytes that a smaller scale leaves.
    pub least: ByteSize,
    /// Text: bytes of a row, 64 at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Numbers of 8 bytes in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<u64>,
}

impl Input {
    /// Bytes of a row.
    pub fn row(&self) -> u64 {
        self.rows.unwrap_or(self.columns.unwrap_or(1) * 8)
    }
    /// Its bytes at a scale: whole rows.
    pub fn bytes(&self, scale: f64) -> u64 {
        let bytes = (self.gb * 1e9 * scale) as u64;
        bytes.max(self.least.0) / self.row() * self.row()
    }
}

/// What a test mostly does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Reads and writes files.
    Io,
    /// Works in memory.
    Memory,
    /// Calculates.
    Compute,
}

impl Class {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Class::Io => "I/O",
            Class::Memory => "memory",
            Class::Compute => "compute",
        }
    }
}

/// How the jobs of a test are repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Those of all rounds at one time.
    Concurrent,
    /// One at a time.
    Serial,
    /// Those of a round at one time, round after round.
    Both,
}

/// One test.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// Which engine does it.
    pub engine: String,
    /// Names of its inputs.
    pub inputs: Vec<String>,
    /// Bytes read by design, as a multiple of its inputs.
    pub reads: f64,
    /// Bytes written by design, as a multiple of its inputs.
    pub writes: f64,
    /// Jobs in one round of the 20-test and of the 30-test form.
    pub jobs: [u32; 2],
    /// How they are repeated.
    pub order: Order,
    /// What it does.
    pub what: String,
    /// What is checked in its result.
    pub checks: String,
}

impl Test {
    /// Jobs of it that may run at one time, of so many in a round.
    pub fn at_once(&self, jobs: u32) -> u32 {
        match self.order {
            Order::Concurrent => u32::MAX,
            Order::Serial => 1,
            Order::Both => jobs,
        }
    }
    /// The program that has it.
    pub fn program(&self) -> &'static str {
        if self.class == Class::Io { "io_tests.py" } else { "compute_tests.py" }
    }
}

/// An engine, and where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Engine {
    /// Its name in the catalogue.
    pub name: &'static str,
    /// The program that shows that it is there.
    pub program: &'static str,
    /// The distribution's package; without one it is in the environment that `ropewalk lab workload setup` makes.
    pub package: Option<&'static str>,
}

/// All engines.
pub const ENGINES: &[Engine] = &[
    Engine { name: "data-step", program: "python3", package: Some("python3") },
    Engine { name: "sort", program: "sort", package: Some("coreutils") },
    Engine { name: "gzip", program: "gzip", package: Some("gzip") },
    Engine { name: "zstd", program: "zstd", package: Some("zstd") },
    Engine { name: "sqlite", program: "python3", package: Some("python3") },
    Engine { name: "duckdb", program: "python3", package: None },
    Engine { name: "polars", program: "python3", package: None },
    Engine { name: "numpy", program: "python3", package: None },
    Engine { name: "scipy", program: "python3", package: None },
    Engine { name: "scikit-learn", program: "python3", package: None },
    Engine { name: "statsmodels", program: "python3", package: None },
];

/// The engine of a name.
pub fn engine(name: &str) -> Option<&'static Engine> {
    ENGINES.iter().find(|engine| engine.name == name)
}

/// The catalogue.
#[expect(clippy::expect_used, reason = "part of the program; a test reads it")]
pub fn catalogue() -> &'static Catalogue {
    static ALL: LazyLock<Catalogue> =
        LazyLock::new(|| toml::from_str(TEXT).expect("workload/catalogue.toml"));
    &ALL
}

impl Catalogue {
    /// The inputs of some tests.
    pub fn inputs<'a>(&'a self, tests: &'a [&Test]) -> impl Iterator<Item = &'a Input> {
        self.input.iter().filter(|input| tests.iter().any(|test| test.inputs.contains(&input.name)))
    }
    /// Bytes of the inputs of a test.
    pub fn input_bytes(&self, test: &Test, scale: f64) -> u64 {
        self.inputs(&[test]).map(|input| input.bytes(scale)).sum()
    }
}

/// Bytes that sorting may take at a scale.
pub fn sort_bytes(scale: f64) -> u64 {
    (SORT_BYTES * scale) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_catalogue_has_the_shape_of_the_source() {
        let all = catalogue();
        let mut classes: BTreeMap<Class, u32> = BTreeMap::new();
        for test in &all.test {
            *classes.entry(test.class).or_default() += 1;
            assert!(engine(&test.engine).is_some(), "{}: {}", test.name, test.engine);
            assert_eq!(all.inputs(&[test]).count(), test.inputs.len(), "{}", test.name);
            assert!(!test.what.is_empty() && !test.checks.is_empty() && test.reads > 0.0, "{}", test.name);
        }
        assert_eq!(classes, [(Class::Io, 8), (Class::Memory, 2), (Class::Compute, 10)].into());
        for (form, wanted) in CONCURRENCY.into_iter().enumerate() {
            assert_eq!(all.test.iter().map(|test| test.jobs[form]).sum::<u32>(), wanted);
        }
        let engines: BTreeSet<&str> = all.test.iter().map(|test| test.engine.as_str()).collect();
        assert_eq!(engines, ENGINES.iter().map(|engine| engine.name).collect());
        for input in &all.input {
            assert!(input.rows.is_some() != input.columns.is_some() && input.rows.unwrap_or(64) >= 64);
        }
        let bytes: u64 = all.input.iter().map(|input| input.bytes(1.0)).sum();
        assert!((1.15e12..1.25e12).contains(&(bytes as f64)), "{bytes}");
        // From KB to 146 GB.
        let sizes = all.input.iter().map(|input| input.bytes(1.0));
        let (least, most) =
            sizes.fold((u64::MAX, 0), |(least, most), size| (least.min(size), most.max(size)));
        assert!(
            (1000..100_000).contains(&least) && (145_990_000_000..=146_000_000_000).contains(&most),
            "{least} {most}"
        );
    }
}
