//! Whether anybody knows the values that a filter names. One that nobody knows is a mistake of who asks; one that is known and was
//! idle is not. The two look alike in the rows.

use std::collections::BTreeSet;

use base::stats::{Set, Source as Of};
use serde::{Deserialize, Serialize};

use crate::{
    legend::Legend,
    query::{Filter, Query, is_ordered},
    value::{Value, is_wanted},
};

/// Values of a filter that are told to who has named none of them, at most.
const TOLD_MAX: usize = 256;

/// By family and label, what those that are asked may have no series of: it is counted seldom, or by others.
const SELDOM: &[(&str, &str, &[&str])] = &[
    (
        "file_op_errors",
        "error",
        &[
            "EPERM",
            "ENOENT",
            "EINTR",
            "EIO",
            "EBADF",
            "EAGAIN",
            "EACCES",
            "EBUSY",
            "EEXIST",
            "EXDEV",
            "ENOTDIR",
            "EISDIR",
            "EINVAL",
            "EFBIG",
            "ENOSPC",
            "EROFS",
            "EMLINK",
            "ERANGE",
            "EDEADLK",
            "ENAMETOOLONG",
            "ENOLCK",
            "ENOSYS",
            "ENOTEMPTY",
            "ENODATA",
            "EOPNOTSUPP",
            "ESTALE",
            "ETIMEDOUT",
            "other",
        ],
    ),
    ("lock_wait_seconds", "kind", &["fcntl", "flock"]),
    ("lock_wait_seconds", "outcome", &["set", "busy", "interrupted", "deadlock", "failed"]),
    ("token_wait_seconds", "need", &["attributes", "names", "read", "write"]),
    ("token_give_up_seconds", "what", &["at_once", "cleaned"]),
    ("stripe_retries", "what", &["read", "write"]),
    ("nsd_cache_bytes", "how", &["hit", "miss"]),
    ("nsd_cache_miss_bytes", "reason", &["first", "second", "changed", "far", "large", "off"]),
    (
        "net_refused_handshakes",
        "reason",
        &["broken", "version", "garbage", "silent", "stranger", "expired", "refused"],
    ),
];

/// What is known of the values that a filter names.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Known {
    /// Which of them are known, by their place.
    pub wanted: BTreeSet<usize>,
    /// Some that could be named, as long as one of those that are is not known.
    pub values: BTreeSet<Value>,
}

impl Known {
    /// Nothing more is to be found out. Of what has an order every value is one, and files are looked for by who asks.
    pub(crate) fn is_settled(&self, filter: &Filter) -> bool {
        is_ordered(filter.dimension) || filter.dimension == "file" || self.wanted.len() == filter.wanted.len()
    }

    /// There is such a value.
    pub(crate) fn see(&mut self, filter: &Filter, value: Value) {
        let places = filter.wanted.iter().enumerate().filter(|(_, want)| is_wanted(want, &value, false));
        self.wanted.extend(places.map(|(place, _)| place));
        if value != Value::Other && self.values.len() < TOLD_MAX {
            self.values.insert(value);
        }
    }

    /// Adds what another process knows.
    pub(crate) fn merge(&mut self, other: Known) {
        self.wanted.extend(other.wanted);
        for value in other.values {
            if self.values.len() < TOLD_MAX {
                self.values.insert(value);
            }
        }
    }
}

/// What a process can count, whether it has or not.
pub(crate) fn by_legend(query: &Query, legend: &Legend) -> Vec<Known> {
    let of = |filter: &Filter| {
        let mut known = Known::default();
        let mut see = |text: &str| known.see(filter, Value::Text(text.to_owned()));
        match query.statistic.source {
            Of::Operations(set, _) => named(legend, set, filter.dimension).for_each(&mut see),
            Of::Family => {
                let family = legend.series.values().filter(|(name, _)| name == query.statistic.family);
                family.filter_map(|(_, labels)| labels.get(filter.dimension)).for_each(|text| see(text));
                let label = (query.statistic.family, filter.dimension);
                let seldom = SELDOM.iter().filter(|(family, of, _)| (*family, *of) == label);
                seldom.flat_map(|(.., values)| *values).for_each(|text| see(text));
            }
        }
        known
    };
    query.filters.iter().map(of).collect()
}

/// What operations or classes of a set are called.
fn named<'a>(legend: &'a Legend, set: Set, dimension: &str) -> Box<dyn Iterator<Item = &'a str> + 'a> {
    let names = match dimension {
        "op" => &legend.ops,
        "class" => &legend.classes,
        _ => return Box::new(std::iter::empty()),
    };
    Box::new(names.iter().filter(move |((of, _), _)| *of == set).map(|(_, name)| name.as_str()))
}
