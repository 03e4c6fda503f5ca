//! What each test must give: computed once on a local disk, by the same programs, over inputs from the same seed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wire::crc::crc32c;

use super::{
    crowd,
    nodes::Nodes,
    setting::{PROGRAMS, Place, Setting, make},
};
use crate::{
    engine::context::{Context, EngineError},
    removal::{self, REMOVE_MAX},
    workload::{Outcome, catalogue::catalogue},
};

/// Values by test.
pub(super) type Values = BTreeMap<String, Value>;

/// A file of them.
#[derive(Serialize, Deserialize)]
struct Kept {
    seed: u64,
    scale: f64,
    /// Of the programs that gave them.
    programs: String,
    values: Values,
}

/// The values of a setting's tests, from the file if it has them, else computed and kept there.
pub(super) fn expected(setting: &Setting, context: &Context<'_>) -> Result<Values, EngineError> {
    let named = context.targets.workload.values.clone();
    let path = named.unwrap_or_else(|| context.work.join("values.json"));
    let programs: Vec<u8> = PROGRAMS.iter().flat_map(|(_, text)| text.bytes()).collect();
    let programs = format!("{:08x}", crc32c(&programs));
    let failed = |why: String| EngineError::Failed { program: path.display().to_string(), why };
    match fs::read(&path) {
        Ok(bytes) => {
            let kept: Kept = serde_json::from_slice(&bytes).map_err(|e| failed(e.to_string()))?;
            let same = kept.seed == setting.seed && kept.scale == setting.scale && kept.programs == programs;
            if same && setting.tests.iter().all(|test| kept.values.contains_key(&test.name)) {
                return Ok(kept.values);
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e.to_string())),
    }
    let values = compute(setting, context)?;
    let kept = Kept { seed: setting.seed, scale: setting.scale, programs, values };
    let text = serde_json::to_vec_pretty(&kept).map_err(|e| failed(e.to_string()))?;
    let new = path.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(|e| failed(e.to_string()))?;
    Ok(kept.values)
}

/// Runs every test once in the run's own directory.
fn compute(setting: &Setting, context: &Context<'_>) -> Result<Values, EngineError> {
    if is_remote(context.work) {
        return Err(EngineError::Target(format!(
            "what the tests must give is computed on a local disk, and {} is on none; name a local results directory by --out, or a \
             file with values by --values",
            context.work.display()
        )));
    }
    let local = context.work.join("local");
    let dir = |name: &str| -> PathBuf { local.join(name) };
    let place = Place { data: dir("data"), work: dir("work"), util: dir("util") };
    make(catalogue(), setting, &place, context)?;
    let values = crowd::once(setting, &place, &Nodes::default(), context);
    let _ = removal::tree(&local, REMOVE_MAX);
    let mut all = Values::new();
    for (job, value) in values? {
        match (&job.outcome, value) {
            (Outcome::Right, Some(value)) => {
                all.insert(job.test, value);
            }
            (outcome, _) => {
                let why = format!("{} on the local disk: {outcome:?}", job.test);
                return Err(EngineError::Failed { program: job.engine, why });
            }
        }
    }
    Ok(all)
}

/// Whether files there may come from another machine, or through another file system's daemon.
fn is_remote(dir: &Path) -> bool {
    // FUSE, NFS, SMB, CIFS, SMB 2, Ceph, Lustre, GPFS, 9p: linux/magic.h and the makers' headers.
    const REMOTE: [u64; 9] = [
        0x6573_5546,
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x00c3_6400,
        0x0bd0_0bd0,
        0x4750_4653,
        0x0102_1997,
    ];
    rustix::fs::statfs(dir).is_ok_and(|found| REMOTE.contains(&(found.f_type as u64 & 0xffff_ffff)))
}
