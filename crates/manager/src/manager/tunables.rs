//! The tunables as they are stored.

use std::{ops::ControlFlow, time::Duration};

use base::tunables::Tunables;

use crate::{
    keys::{ConfigRecord, ReadError},
    store::{Read, open_record, prefix_end},
};

/// Those that differ from their defaults.
pub(super) fn read_config(from: &dyn Read) -> Result<Vec<(String, String)>, ReadError> {
    let (mut pairs, mut bad) = (Vec::new(), None);
    from.scan(b"k", &prefix_end(b"k"), &mut |key, value| {
        match open_record::<ConfigRecord>(key, value) {
            Ok(record) => pairs.push((String::from_utf8_lossy(&key[1..]).into_owned(), record.value)),
            Err(error) => bad = Some(error),
        }
        ControlFlow::Continue(())
    })?;
    bad.map_or(Ok(pairs), |error| Err(error.into()))
}

/// What was stored, as far as this version knows it.
pub(super) fn tunables_of(pairs: &[(String, String)]) -> Tunables {
    let mut tunables = Tunables::default();
    let all = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    if let Err(error) = tunables.apply(all) {
        tracing::error!(%error, "stored tunables do not fit; defaults are used");
    }
    tunables
}

/// The stored tunables.
pub(super) fn read_tunables(from: &dyn Read) -> Result<Tunables, ReadError> {
    Ok(tunables_of(&read_config(from)?))
}

/// The lease under which one of several managers leads. What cannot be read here is found when it is opened.
pub(super) fn stored_lease(from: &dyn Read) -> Duration {
    read_tunables(from).unwrap_or_default().manager_lease()
}
