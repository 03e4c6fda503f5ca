//! What became of one job, and whether its values are those that were expected.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::catalogue::Class;

/// Relative difference that numbers with a fraction may have; all others are exact.
const TOLERANCE: f64 = 1e-6;

/// How a job ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// With the values that were expected.
    #[default]
    Right,
    /// With other values: which, and what they are.
    Wrong(String),
    /// With an error, or not in time.
    Failed(String),
}

/// One job. Times and bytes are of the job and of all that it started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its test.
    pub test: String,
    /// The test's class.
    pub class: Class,
    /// The engine.
    pub engine: String,
    /// The client node, from 1.
    pub node: u32,
    /// Which job of its test on its node, from 1.
    pub number: u32,
    /// Seconds from the start of the workload to its own.
    pub started_s: f64,
    /// What it used; zeros where it was ended before it could tell.
    #[serde(flatten)]
    pub used: Used,
    /// How it ended.
    pub outcome: Outcome,
}

/// What a job used, by its rusage and `/proc/PID/io`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Used {
    pub real_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    /// The most that one of its processes held.
    pub memory_bytes: u64,
    pub faults: u64,
    pub reclaims: u64,
    pub voluntary: u64,
    pub involuntary: u64,
    pub blocks_in: u64,
    pub blocks_out: u64,
    /// By system calls, whether or not a cache answered; without what it read to start up.
    pub read_bytes: i64,
    pub written_bytes: i64,
}

impl Job {
    /// Bytes read and written.
    pub fn bytes(&self) -> f64 {
        (self.used.read_bytes + self.used.written_bytes).max(0) as f64
    }
    /// Its name among the jobs of a run.
    pub fn name(&self) -> String {
        format!("n{}-{}-{}", self.node, self.test, self.number)
    }
}

/// The first difference between values; `None` if there is none.
pub fn difference(expected: &Value, got: &Value) -> Option<String> {
    find(expected, got, "")
}

fn find(expected: &Value, got: &Value, at: &str) -> Option<String> {
    let equal = match (expected, got) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            return a.iter().find_map(|(key, value)| find(value, &b[key], &join(at, key)));
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            return pairs.find_map(|(i, (a, b))| find(a, b, &join(at, &i.to_string())));
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
        }
        (a, b) => a == b,
    };
    (!equal).then(|| format!("{at} is {} in place of {}", brief(got), brief(expected)))
}

fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

/// A value, cut where it is long.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    text.char_indices().nth(60).map_or(text.clone(), |(end, _)| format!("{}...", &text[..end]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_and_texts_are_exact_and_fractions_nearly() {
        let good = json!({"sums": [1, 2, "x"], "fit": [0.123456789, 1e-12], "crc": 4_000_000_000u64});
        let near = json!({"sums": [1, 2, "x"], "fit": [0.123456788, 1e-12], "crc": 4_000_000_000u64});
        assert_eq!(difference(&good, &near), None);
        for (key, value, says) in [
            ("sums", json!([1, 3, "x"]), "sums.1 is 3 in place of 2"),
            ("sums", json!([1, 2]), "sums is [1,2] in place of [1,2,\"x\"]"),
            ("fit", json!([0.1235, 1e-12]), "fit.0 is 0.1235"),
            ("fit", json!([null, 1e-12]), "fit.0 is null"),
            ("crc", json!(4_000_000_001u64), "crc is 4000000001"),
        ] {
            let mut wrong = good.clone();
            wrong[key] = value;
            assert!(difference(&good, &wrong).unwrap().starts_with(says), "{says}");
        }
        assert!(difference(&good, &Value::Null).is_some());
        assert!(difference(&good, &json!({})).is_some());
    }
}
