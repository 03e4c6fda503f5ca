//! What the numbers in a second mean: series, and the operations and classes of each set. Each life of a process, and each
//! file of a history, has its own.

use std::collections::{BTreeMap, HashMap};

use base::stats::{self, Set};

const SETS: [Set; 3] = [Set::File, Set::Strip, Set::Manager];
/// Operations and classes of a set, at most.
const NUMBERS: u8 = 128;

/// Labels and their values.
pub type Labels = BTreeMap<String, String>;

/// What numbers mean.
#[derive(Clone, Default)]
pub struct Legend {
    /// Series: family and labels.
    pub series: HashMap<u32, (String, Labels)>,
    /// Operations of a set.
    pub ops: HashMap<(Set, u8), String>,
    /// Classes of a set.
    pub classes: HashMap<(Set, u8), String>,
}

impl Legend {
    /// Of this process, as it is now.
    pub fn own() -> Legend {
        let mut legend = Legend::default();
        legend.learn_series();
        legend.learn_names();
        legend
    }

    /// Takes over all series of this process.
    pub fn learn_series(&mut self) {
        let all = stats::registry().series().into_iter();
        self.series.extend(all.map(|(number, (name, labels))| (number, (name.to_owned(), labels))));
    }

    /// Takes over what the operations of this process are called.
    pub fn learn_names(&mut self) {
        for set in SETS {
            let Some(names) = stats::names_of(set) else { continue };
            for number in 0..NUMBERS {
                self.ops.insert((set, number), (names.op)(number).to_owned());
                self.classes.insert((set, number), (names.class)(number).to_owned());
            }
        }
    }

    /// What an operation is called.
    pub fn op(&self, set: Set, number: u8) -> &str {
        self.ops.get(&(set, number)).map_or("other", String::as_str)
    }

    /// What a class is called.
    pub fn class(&self, set: Set, number: u8) -> &str {
        self.classes.get(&(set, number)).map_or("other", String::as_str)
    }
}
