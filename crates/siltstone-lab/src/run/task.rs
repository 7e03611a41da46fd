//! A task in, the folder of a finished trial out.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use super::folder::{MACHINE, Partial, ROW, TASK, WINDOWS, is_finished};
use super::machine;
use super::question::{Place, Task};
use super::row::Row;
use super::stage::stages;
use super::trial::{Progress, Trial};
use crate::load::{DiskWorld, World};
use crate::recorder::TreeRecorder;
use crate::workload::Generator;

/// Does `task`, and puts what came of it in the folder `place`, complete or not at all. A trial that is finished there already is left alone;
/// answers whether there was something to do. The files of a store on disk are in a folder in `scratch`, or beside the results, and go at the end.
///
/// # Errors
/// If the task is wrong; if `place` holds something else; the first error of the store; `Cancelled` if `watch` said so.
pub fn run_trial(
    task: &Task,
    place: &Path,
    scratch: Option<&Path>,
    watch: &dyn Fn(Progress<'_>) -> bool,
) -> anyhow::Result<bool> {
    if is_finished(place, task)? {
        return Ok(false);
    }
    let (spec, options) = (task.spec()?, task.options()?);
    let stages = stages(&spec);
    let partial = Partial::begin(place)?;
    let file = |name: &str| partial.path().join(name);
    std::fs::write(file(TASK), serde_json::to_string_pretty(task)? + "\n")?;
    let begun = machine::begin(task.world, partial.path()).context("cannot look at the machine")?;
    let mut windows = BufWriter::new(File::create(file(WINDOWS))?);
    let world: Box<dyn World> = match task.world {
        Place::Disk => Box::new(DiskWorld::new(Some(scratch.unwrap_or(partial.path())))?),
        Place::Sim => Box::new(task.device.unwrap_or_default().world(task.seed)),
    };
    let trial = Trial {
        world: &*world,
        is_sim: task.world == Place::Sim,
        options: &options,
        keyspaces: &spec.keyspace_names(),
        stages: &stages,
        is_checked: spec.values.checked,
        seed: task.seed,
        recorder: Some(Arc::new(TreeRecorder::create(partial.path(), world.clock())?)),
        watch,
    };
    let made = trial.run(&mut |client| Ok(Box::new(Generator::new(&spec, client)?)), &mut windows, &mut |_, _| ())?;
    let row = Row {
        workload: spec.name.clone(),
        strategy: task.strategy.name.clone(),
        repetition: task.repetition,
        world: task.world.name().to_owned(),
        generator_version: task.generator_version,
        ..made
    };
    windows.flush()?;
    drop((windows, trial));
    drop(world);
    std::fs::write(file(ROW), serde_json::to_string(&row)? + "\n")?;
    let machine = begun.end(partial.path()).context("cannot look at the machine")?;
    std::fs::write(file(MACHINE), serde_json::to_string_pretty(&machine)? + "\n")?;
    partial.finish()?;
    Ok(true)
}
