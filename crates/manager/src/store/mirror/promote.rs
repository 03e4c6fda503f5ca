//! A copy on its keeper's machine becomes the manager's store there.

use std::{path::Path, thread};

use wire::frame;

use super::{
    super::{Look, StoreError},
    message::{Answer, Ask},
    node::{LEASE, Voters},
    votes::to_promote,
    way::Way,
    witness::{CACHE_BYTES, damaged_as_well, number_of, take_files},
};

/// How long servers may take.
const VOTE: std::time::Duration = std::time::Duration::from_secs(5);

/// Makes the copy in `copy`, which nobody has open, the manager's store in `dir`; how many commits it has. Refused if it may lack one
/// that was acknowledged, or too few servers say that it does not. Who calls it sees to it that the copy is not promoted again.
pub fn promote_kept(copy: &Path, dir: &Path, voters: Voters, way: &dyn Way) -> Result<u64, StoreError> {
    let refuse = |why: String| StoreError::Open {
        path: copy.to_owned(),
        reason: format!(
            "{why}. The copy stays as it is. Bring back the manager's own machine, or restore a dump (`ropewalk manager restore`)"
        ),
    };
    let id = number_of(copy).ok_or_else(|| {
        refuse("it lacks what was committed last, or was never whole: it has no number that counts".into())
    })?;
    let table = copy.join("store.redb");
    let mut look = Look::open(&table, CACHE_BYTES)?;
    if let Some(flaw) = look.flaw()? {
        return Err(refuse(damaged_as_well(&flaw)));
    }
    let (last, voters) = (look.last, (voters.of)(&*look.snapshot()?)?);
    drop(look);
    // What the keeper has confirmed last may have been just now.
    thread::sleep(LEASE + LEASE / 3);
    let (all, need) = (voters.len(), to_promote(voters.len()));
    let body = frame::encode(&Ask::Vote { id, promoted: true });
    let (mut for_it, mut behind, mut silent) = (0, Vec::new(), Vec::new());
    for (voter, heard) in voters.iter().zip(way.voters(&voters, &body, VOTE)) {
        match heard.as_deref().map(frame::decode) {
            Ok(Ok(Answer::Stands { promoted: true })) => for_it += 1,
            Ok(Ok(Answer::Stands { promoted: false })) => behind.push(voter.name.as_str()),
            Ok(Ok(Answer::Refused { why })) => silent.push(format!("{} ({why})", voter.name)),
            Ok(_) => silent.push(voter.name.clone()),
            Err(why) => silent.push(format!("{} ({why})", voter.name)),
        }
    }
    if for_it < need && !behind.is_empty() {
        return Err(refuse(format!(
            "it lacks what was committed last, as {} of {all} servers say: {}",
            behind.len(),
            behind.join(", ")
        )));
    }
    if for_it < need {
        return Err(refuse(format!(
            "{need} of {all} servers have to say that it is not behind, and {for_it} did. Start what does not answer, and try again: {}",
            silent.join("; ")
        )));
    }
    take_files(&table, dir)?;
    Ok(last)
}
