//! A store as it stands, as a page: the tree of each keyspace, and the decisions that the store has kept.

use serde_json::Value;
use siltstone::Keyspace;
use siltstone::version::{LevelId, RunOrder};

use super::bytes;
use super::decisions::Compaction;
use super::pack::{Change, PackedTree, candidates_kept};
use super::page::{Page, Subject};
use crate::num::{count, float};
use crate::recorder::{AddedFile, compaction_json};

/// The page of a store, as HTML: `name` is what it is called, `keyspaces` are shown in this order.
///
/// # Errors
/// None that a store can cause: a tree is what it is. A decision that cannot be written as JSON would be one.
pub fn store_page(name: &str, keyspaces: &[Keyspace]) -> anyhow::Result<String> {
    let trees: Vec<_> = keyspaces.iter().map(Keyspace::tree).collect();
    let decisions: Vec<_> = keyspaces.iter().map(Keyspace::decisions).collect();
    let candidates = candidates_kept(decisions.iter().map(Vec::len).sum());
    let mut subjects = Vec::new();
    for ((keyspace, tree), decisions) in keyspaces.iter().zip(&trees).zip(&decisions) {
        let mut added = Vec::new();
        for level in &tree.levels {
            for run in &level.runs {
                added.extend(
                    run.files.iter().map(|file| AddedFile::new(LevelId(level.level), RunOrder(run.order), file)),
                );
            }
        }
        let began_ms = decisions.iter().map(|decision| decision.started_ms).min().unwrap_or(0);
        let compactions = decisions
            .iter()
            .map(|decision| {
                let took_ns = decision.ended.as_ref().map_or(0, |ended| ended.took_ns);
                // The kept decisions have wall times only: the first one is the beginning.
                let at_ns = (decision.started_ms - began_ms) * 1_000_000 + took_ns;
                Ok(serde_json::from_value(compaction_json(decision, at_ns)?)?)
            })
            .collect::<anyhow::Result<Vec<Compaction>>>()?;
        let change = Change { at_s: 0.0, removed: Vec::new(), added, cause: None };
        subjects.push(Subject {
            name: keyspace.name().to_owned(),
            text: Some(keyspace.stats().strategy),
            rows: vec![row(&change.added, tree.memtable_bytes)],
            trees: vec![PackedTree::new(keyspace.name(), &[change], &compactions, candidates, 1)?],
            ..Subject::default()
        });
    }
    let files: u64 = trees
        .iter()
        .flat_map(|tree| &tree.levels)
        .flat_map(|level| &level.runs)
        .map(|run| count(run.files.len()))
        .sum();
    let all = trees.iter().flat_map(|tree| &tree.levels).flat_map(|level| &level.runs).flat_map(|run| &run.files);
    let size: u64 = all.map(|file| file.bytes).sum();
    let facts = vec![
        ("Store".to_owned(), name.to_owned()),
        ("Keyspaces".to_owned(), keyspaces.len().to_string()),
        ("Files".to_owned(), format!("{files}, {}", bytes(size))),
    ];
    Ok(Page {
        kind: "store",
        title: format!("Siltstone: the trees of {name}"),
        facts,
        subjects,
        notes: Vec::new(),
        machines: Vec::new(),
    }
    .render())
}

fn row(files: &[AddedFile], memtable_bytes: u64) -> Value {
    let sum = |of: fn(&AddedFile) -> u64| files.iter().map(of).sum::<u64>();
    let mut runs: Vec<(u8, u64)> = files.iter().map(|file| (file.level, file.run)).collect();
    runs.sort_unstable();
    runs.dedup();
    serde_json::json!({
        "disk_bytes": sum(|file| file.bytes),
        "files": files.len(),
        "runs": runs.len(),
        "entries": sum(|file| file.entries),
        "tombstones": sum(|file| file.tombstones),
        "tombstone_share": if files.is_empty() { 0.0 } else { float(sum(|file| file.tombstones)) / float(sum(|file| file.entries).max(1)) },
        "memtable_bytes": memtable_bytes,
    })
}
