//! Setting, unsetting and storing tunables.
//! All changes of one call are made or none. Derived values follow at once. What is stored is only what was
//! set, so a new version's better default reaches everybody who did not choose.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, Visitor},
};

use super::{
    error::TunableError,
    show,
    table::{ROWS, Row, Tunables, Values},
};

impl Tunables {
    /// Sets one tunable. Gives its row, which says when the change takes effect.
    pub fn set(&mut self, name: &str, text: &str) -> Result<&'static Row, TunableError> {
        self.apply([(name, text)])?;
        show::find(name)
    }

    /// Sets several tunables, all or none; only the result must fit together, whatever the order.
    pub fn apply<'a>(
        &mut self,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), TunableError> {
        let mut new = self.clone();
        for (name, text) in pairs {
            let row = show::find(name)?;
            (row.set_text)(&mut new.values, text).map_err(|reason| TunableError::BadValue {
                name: row.name,
                value: text.to_owned(),
                reason,
                allowed: format!("{} ({}), default {}", row.allowed_text(), row.unit, row.default_text()),
            })?;
            new.set |= 1 << row.index;
        }
        *self = new.settled()?;
        Ok(())
    }

    /// Takes one tunable back to its default or derived value.
    pub fn unset(&mut self, name: &str) -> Result<&'static Row, TunableError> {
        let row = show::find(name)?;
        let mut new = self.clone();
        (row.copy)(&mut new.values, &Values::default());
        new.set &= !(1 << row.index);
        *self = new.settled()?;
        Ok(row)
    }

    /// One value, as text that `set` reads.
    pub fn get(&self, name: &str) -> Result<String, TunableError> {
        Ok((show::find(name)?.get_text)(&self.values))
    }

    /// Whether this row was set (and not only derived).
    pub fn is_set(&self, row: &Row) -> bool {
        self.set & (1 << row.index) != 0
    }

    /// What was set, as (name, value).
    pub fn changed(&self) -> impl Iterator<Item = (&'static str, String)> {
        ROWS.iter().filter(|row| self.is_set(row)).map(|row| (row.name, (row.get_text)(&self.values)))
    }

    /// Derives what follows, then checks what must fit together.
    fn settled(mut self) -> Result<Tunables, TunableError> {
        for row in ROWS {
            if let (Some(derive), false) = (row.derive, self.is_set(row)) {
                derive(&mut self.values);
            }
        }
        self.values.check_together().map_err(|(name, reason)| TunableError::Conflict {
            name,
            value: self.get(name).unwrap_or_default(),
            reason,
        })?;
        Ok(self)
    }
}

impl Serialize for Tunables {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.changed().collect::<BTreeMap<_, _>>().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tunables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tunables, D::Error> {
        let pairs = deserializer.deserialize_map(Pairs)?;
        let mut tunables = Tunables::default();
        tunables
            .apply(pairs.iter().map(|(name, text)| (name.as_str(), text.as_str())))
            .map_err(D::Error::custom)?;
        Ok(tunables)
    }
}

/// Tunables of earlier versions that meant nothing: a stored configuration may still have them.
const RETIRED: &[&str] =
    &["worker3Threads", "adoption_delay", "maxReceiverThreads", "maxStatCache", "nsdMaxWorkerThreads"];

/// Reads (name, value) pairs; each name once, in whatever spelling.
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tunables and their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if RETIRED.contains(&name.as_str()) {
                map.next_value::<Text>()?;
                continue;
            }
            let row = show::find(&name).map_err(A::Error::custom)?;
            if pairs.iter().any(|(n, _)| n == row.name) {
                return Err(A::Error::custom(format_args!("{} is given twice", row.name)));
            }
            pairs.push((row.name.to_owned(), map.next_value::<Text>()?.0));
        }
        Ok(pairs)
    }
}

/// A value as text. Files that people write may also have plain numbers and booleans.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct AnyScalar;
        impl Visitor<'_> for AnyScalar {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a whole number or a boolean")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Text, E> {
                Ok(Text(n.to_string()))
            }
            fn visit_i64<E>(self, n: i64) -> Result<Text, E> {
                Ok(Text(n.to_string()))
            }
            fn visit_bool<E>(self, yes: bool) -> Result<Text, E> {
                Ok(Text(yes.to_string()))
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(AnyScalar)
        } else {
            deserializer.deserialize_str(AnyScalar)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::units::{ByteSize, MIB};

    #[test]
    fn set_in_any_spelling_gives_a_typed_value() {
        let mut tunables = Tunables::default();
        assert_eq!(tunables.set("PagePool", "4g").unwrap().name, "pagepool");
        tunables.set("seqdiscardthreshhold", " 1G ").unwrap();
        tunables.set("operationdeadline", "2min").unwrap();
        assert_eq!(tunables.pagepool(), ByteSize(4096 * MIB));
        assert_eq!(tunables.seq_discard_threshold(), ByteSize(1024 * MIB));
        assert_eq!(tunables.operation_deadline(), Duration::from_secs(120));
        assert_eq!(tunables.changed().count(), 3);
        tunables.unset("pagepool").unwrap();
        assert_eq!((tunables.pagepool(), tunables.changed().count()), (ByteSize(1024 * MIB), 2));
    }

    #[test]
    fn what_earlier_versions_stored_is_read() {
        let stored = r#"{"worker3Threads": "8", "maxStatCache": 10, "pagepool": "4g"}"#;
        let tunables: Tunables = serde_json::from_str(stored).unwrap();
        assert_eq!(tunables.changed().count(), 1);
        assert!(serde_json::from_str::<Tunables>(r#"{"worker4Threads": "8"}"#).is_err());
    }

    #[test]
    fn bad_values_name_tunable_value_range_and_change_nothing() {
        for (name, value, parts) in [
            ("pagepool", "4x", &["\"4x\"", "pagepool", "16m to 16t", "default 1g"][..]),
            ("pagepool", "1m", &["out of range", "16m to 16t"]),
            ("prefetchPct", "61", &["out of range", "0 to 60", "% of pagepool"]),
            ("maxblocksize", "3m", &["256k, 512k, 1m, 2m, 4m, 8m, 16m"]),
            ("leaseDuration", "soon", &["not a duration"]),
            ("io_engine", "aio", &["auto, io_uring, psync"]),
            ("workerThreads", "-1", &["not a whole number", "1 to 8192"]),
            ("pagepol", "1g", &["unknown tunable \"pagepol\"", "pagepool"]),
            ("nsdMultiQueue", "512", &["num_io_queues"]),
        ] {
            let mut tunables = Tunables::default();
            let error = tunables.apply([("maxMBpS", "9"), (name, value)]).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            assert_eq!(tunables, Tunables::default());
        }
    }

    #[test]
    fn worker_threads_move_what_follows_from_them() {
        let mut tunables = Tunables::default();
        tunables.set("workerThreads", "1024").unwrap();
        let of = |t: &Tunables| {
            (t.prefetch_threads(), t.worker1_threads(), t.max_file_cleaners(), t.sync_worker_threads())
        };
        assert_eq!(of(&tunables), (341, 1024, 1024, 256));
        tunables.set("maxFileCleaners", "40").unwrap();
        tunables.set("workerThreads", "2").unwrap();
        assert_eq!(of(&tunables), (2, 2, 40, 1));
        tunables.unset("maxFileCleaners").unwrap();
        tunables.unset("workerThreads").unwrap();
        assert_eq!(tunables, Tunables::default());
    }

    #[test]
    fn values_must_fit_together_in_the_end_only() {
        let mut tunables = Tunables::default();
        for (name, value, other) in [
            ("pagepool", "32m", "maxblocksize=16m"),
            ("queues_per_pdisk", "4", "num_io_queues=2"),
            ("leaseRenewInterval", "4s", "leaseDuration=10s"),
            ("prefetchThreads", "8192", "workerThreads"),
        ] {
            let error = tunables.set(name, value).unwrap_err();
            assert!(
                matches!(error, TunableError::Conflict { .. }) && error.to_string().contains(other),
                "{error}"
            );
        }
        tunables
            .apply([
                ("queues_per_pdisk", "4"),
                ("pagepool", "32m"),
                ("maxblocksize", "8m"),
                ("num_io_queues", "4"),
            ])
            .unwrap();
        assert!(tunables.unset("num_io_queues").is_err());
        assert_eq!(tunables.queues_per_pdisk(), 4);
    }

    #[test]
    fn stored_as_what_was_set() {
        let mut tunables = Tunables::default();
        assert_eq!(serde_json::to_string(&tunables).unwrap(), "{}");
        tunables.apply([("queues_per_pdisk", "4"), ("num_io_queues", "8"), ("pagepool", "2048m")]).unwrap();
        let json = serde_json::to_string(&tunables).unwrap();
        assert_eq!(json, r#"{"num_io_queues":"8","pagepool":"2g","queues_per_pdisk":"4"}"#);
        assert_eq!(serde_json::from_str::<Tunables>(&json).unwrap(), tunables);
        let bytes = postcard::to_stdvec(&tunables).unwrap();
        assert_eq!(postcard::from_bytes::<Tunables>(&bytes).unwrap(), tunables);
        assert_eq!(serde_json::from_str::<Tunables>(r#"{"num_io_queues": 8}"#).unwrap().num_io_queues(), 8);
        for bad in [
            r#"{"num_io_queues": 80}"#,
            r#"{"numIoQueues": 8}"#,
            r#"{"pagepool":"2g","PagePool":"3g"}"#,
            r#"{"pagepool":1.5}"#,
        ] {
            assert!(serde_json::from_str::<Tunables>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn defaults_are_allowed_derived_and_fit_together() {
        for row in ROWS {
            let mut tunables = Tunables::default();
            tunables.set(row.name, &row.default_text()).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            assert_eq!(tunables.values, Values::default(), "{}", row.name);
        }
        assert_eq!(Tunables::default().settled().unwrap(), Tunables::default());
    }

    #[test]
    fn changed_configurations_are_refused_or_mean_something() {
        let stored =
            r#"{"num_io_queues":"8","pagepool":"2g","leaseDuration":"10s","io_engine":"psync","maxMBpS":9}"#;
        crate::mutate::mutated(&[stored.into()], 20_000, |bytes| {
            if let Ok(tunables) = serde_json::from_slice::<Tunables>(bytes) {
                let again = serde_json::to_string(&tunables).unwrap();
                assert_eq!(serde_json::from_str::<Tunables>(&again).unwrap(), tunables);
            }
        });
    }
}
