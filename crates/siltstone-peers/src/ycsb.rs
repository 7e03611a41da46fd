//! YCSB A to F on one store, in the order that its authors recommend: load, A, B, C, F, D, E. What is done is what the shipped specs say.

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use siltstone_lab::workload::Spec;

use crate::run::Job;
use crate::workload::Workload;

/// What may be asked for in a comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Choice {
    /// One of `db_bench`'s.
    Bench(Workload),
    /// One of YCSB's, by its place in [`ORDER`].
    Ycsb(usize),
}

/// The shipped specs, in the order in which their runs follow each other: D and E add records, which would make the others' runs larger.
const ORDER: [&str; 6] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f", "ycsb-d", "ycsb-e"];
/// A scan takes as long as many gets: of E's operations there are so many times fewer.
const SCANS_FEWER: u64 = 5;

static CHOICES: std::sync::LazyLock<Vec<Choice>> = std::sync::LazyLock::new(|| {
    let benches = Workload::ALL.iter().map(|&workload| Choice::Bench(workload));
    benches.chain((0..ORDER.len()).map(Choice::Ycsb)).collect()
});

impl Choice {
    fn name(self) -> &'static str {
        match self {
            Choice::Bench(workload) => workload.name(),
            Choice::Ycsb(at) => ORDER[at],
        }
    }

    /// What was asked for, each once and in the order in which it runs; if nothing was, everything, or with `sync` what writes alone.
    pub(crate) fn sorted(asked: &[Choice], sync: bool) -> Vec<Choice> {
        let mut choices = asked.to_vec();
        if choices.is_empty() {
            let wanted = |choice: &&Choice| !sync || matches!(choice, Choice::Bench(workload) if workload.writes());
            choices.extend(CHOICES.iter().filter(wanted));
        }
        choices.sort();
        choices.dedup();
        choices
    }

    /// The workloads of `db_bench` among them.
    pub(crate) fn benches(choices: &[Choice]) -> Vec<Workload> {
        let bench = |choice: &Choice| match choice {
            Choice::Bench(workload) => Some(*workload),
            Choice::Ycsb(_) => None,
        };
        choices.iter().filter_map(bench).collect()
    }
}

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Choice] {
        &CHOICES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

/// The runs of YCSB that were asked for, as one spec: with the keys, values and numbers of `job`. None if none was.
///
/// # Errors
/// If the shipped specs are not what this expects of them.
pub(crate) fn chain(choices: &[Choice], job: &Job) -> Result<Option<Spec>> {
    let asked: Vec<usize> =
        choices.iter().filter_map(|choice| if let Choice::Ycsb(at) = choice { Some(*at) } else { None }).collect();
    if asked.is_empty() {
        return Ok(None);
    }
    let number = |n: u64| i64::try_from(n).map(toml::Value::from).context("a number below 2^63");
    let settings = [
        ("records".to_owned(), number(job.num)?),
        ("seed".to_owned(), number(job.seed)?),
        ("keys.bytes".to_owned(), number(crate::count(crate::keys::KEY_BYTES))?),
        ("values.fields".to_owned(), number(1)?),
        ("values.bytes".to_owned(), number(crate::count(job.value_bytes))?),
    ];
    let mut all = Vec::new();
    for at in asked {
        let spec: toml::Table = Spec::choose(ORDER[at], &settings)?.text().parse()?;
        let phase = |name: &str| {
            let phases = spec.get("phase").and_then(toml::Value::as_array);
            let found = phases.and_then(|phases| phases.iter().find(|phase| phase["name"].as_str() == Some(name)));
            found.and_then(toml::Value::as_table).cloned().with_context(|| format!("{} has no phase {name}", ORDER[at]))
        };
        let mut run = phase("run")?;
        let operations = if ORDER[at] == "ycsb-e" { (job.reads / SCANS_FEWER).max(1) } else { job.reads };
        run.insert("name".to_owned(), ORDER[at].trim_start_matches("ycsb-").into());
        run.insert("operations".to_owned(), number(operations)?);
        // Each starts from rest.
        run.insert("settle".to_owned(), true.into());
        if all.is_empty() {
            all.push((spec.clone(), phase("load")?));
        }
        all.push((spec.clone(), run));
    }
    let (mut chained, _) = all[0].clone();
    chained.insert("name".to_owned(), "ycsb".into());
    chained.insert("phase".to_owned(), all.into_iter().map(|(_, phase)| phase).collect::<Vec<_>>().into());
    Spec::parse(&chained.to_string(), "YCSB in one store").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_one_load_in_the_recommended_order() {
        let job = Job {
            num: 1000,
            value_bytes: 100,
            reads: 500,
            ..serde_json::from_str(
                r#"{"budget": {"memtable_bytes": 1, "memtables": 2, "cache_bytes": 1, "block_bytes": 1, "filter_bits_per_key": 1,
                "compression": "none", "threads": 1, "sync": false, "siltstone_options": "",
                "leveldb_verifies": false}, "workloads": [], "num": 1,
                "value_bytes": 1, "reads": 1, "cap_s": 1.0, "seed": 7, "filled": false}"#,
            )
            .expect("a job")
        };
        let asked = Choice::sorted(&[Choice::Ycsb(5), Choice::Bench(Workload::FillSeq), Choice::Ycsb(0)], false);
        assert_eq!(Choice::benches(&asked), [Workload::FillSeq]);
        let spec = chain(&asked, &job).expect("it is right").expect("two were asked for");
        crate::spec::check(&spec).expect("every engine can do it");
        let phases: Vec<_> = spec.phases.iter().map(|phase| (&phase.name[..], spec.operations(phase))).collect();
        assert_eq!(phases, [("load", Some(1000)), ("a", Some(500)), ("e", Some(100))]);
        assert_eq!((spec.seed, spec.records), (7, 1000));
        assert!(chain(&[Choice::Bench(Workload::FillSeq)], &job).expect("nothing to do").is_none());
        assert_eq!(Choice::sorted(&[], true).len(), 4);
    }
}
