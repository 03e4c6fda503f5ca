//! The mixed analytics workload on real engines. A client node is a directory named as writable, or three of them (DATA, WORK,
//! UTIL). The inputs are made before anything is observed, and what each test must give is computed once on a local disk; then each
//! node keeps so many jobs running at a time until its list is empty. A job that gives other values than on the local disk fails
//! its cell, whose figures stay.

mod crowd;
mod nodes;
mod setting;
mod values;

use std::{fs, time::Instant};

use super::context::{Context, EngineError};
use crate::{
    calibrate::free_memory,
    cell::{Cell, Figures},
    workload::{
        Outcome,
        catalogue::{self, catalogue},
        summarise,
    },
};
use nodes::Nodes;
use setting::{PROGRAMS, Place, Setting, make, program_dir};
pub use setting::{bytes, programs, ready};

/// Memory that a job may need beside what sorting takes, as far as how many run at a time goes.
const JOB_MEMORY: f64 = 200e6;
/// Part of the free memory that jobs may take together.
const MEMORY_PART: f64 = 0.8;

/// Makes programs, inputs and the values that are expected, before anything is observed.
pub fn prepare(cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
    let setting = Setting::of(cell, context)?;
    let dir = program_dir(context);
    let write = |(name, text): &(&str, &str)| fs::write(dir.join(name), text);
    fs::create_dir_all(&dir).and_then(|()| PROGRAMS.iter().try_for_each(write)).map_err(|e| {
        EngineError::Failed { program: format!("writing {}", dir.display()), why: e.to_string() }
    })?;
    let all = catalogue();
    for node in 0..cell.step {
        make(all, &setting, &Place::of(cell, context, node)?, context)?;
    }
    values::expected(&setting, context).map(drop)
}

/// Runs the workload on as many client nodes as the step has.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let mut setting = Setting::of(cell, context)?;
    let expected = values::expected(&setting, context)?;
    let mut notes = Vec::new();
    let each = JOB_MEMORY + catalogue::sort_bytes(setting.scale) as f64;
    let nodes = Nodes::make(cell, context)?;
    let share = free_memory() as f64 / f64::from(cell.step.max(1));
    let memory = nodes.memory().map_or(share, |memory| share.min(memory as f64));
    let room = (memory * MEMORY_PART / each) as u32;
    if room < setting.at_once {
        notes.push(format!(
            "{} jobs at a time on each node were asked for; its memory has room for {}",
            setting.at_once,
            room.max(1)
        ));
        setting.at_once = room.max(1);
    }
    let places: Vec<Place> =
        (0..cell.step).map(|node| Place::of(cell, context, node)).collect::<Result<_, _>>()?;
    for (node, place) in places.iter().enumerate() {
        // It is there: this only reads what was noted.
        let made = make(catalogue(), &setting, place, context)?;
        let bytes: u64 = made.inputs.iter().map(|made| made.bytes).sum();
        let digests: Vec<String> =
            made.inputs.iter().map(|made| format!("{} {}", made.name, made.digest)).collect();
        notes.push(format!(
            "node {}: inputs in {}, {} from seed {}; digests {}",
            node + 1,
            place.data.display(),
            base::units::human_size(bytes),
            setting.seed,
            digests.join(", ")
        ));
    }
    notes.extend(nodes.notes());
    context.load_begins(Instant::now());
    let jobs = crowd::run(&setting, &places, &nodes, &expected, context);
    places.iter().for_each(Place::clear);
    let jobs = jobs?;
    let sum = summarise(&jobs, 1.0);
    let right = jobs.iter().filter(|job| job.outcome == Outcome::Right).count();
    Ok(Figures {
        operations: right as f64 / sum.elapsed_s.max(1e-9),
        bytes: sum.bytes_per_second.values().sum(),
        parts: sum.bytes_per_second.iter().map(|(node, rate)| (format!("client {node}"), *rate)).collect(),
        notes,
        jobs,
        ..Figures::default()
    })
}
