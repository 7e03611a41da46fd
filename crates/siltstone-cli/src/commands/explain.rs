//! `explain STORE`

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use siltstone::compaction::Decision;
use siltstone::{Db, Keyspace, Pending};

use crate::output::{Output, print, print_json};
use crate::store::StoreArgs;

mod draw;
#[cfg(test)]
mod tests;

/// Tell why the store compacted what it did: rule, trigger, candidates, what it should cost and what it did. Or, with --pending, what it
/// would compact next, and why nothing is if nothing is.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone explain shop
  siltstone explain shop --level 1 --last 5 --details
  siltstone explain shop --json | jq -c '[.job, .trigger, .value, .threshold]'
  siltstone explain shop --pending

A store keeps its last decisions (option decision_records, 256 for each keyspace). A trigger fires when its value \
reaches its threshold. Of the candidates, the one with the smallest score goes first. Nothing is changed: the store is \
opened for reading.")]
pub(crate) struct Explain {
    #[command(flatten)]
    store: StoreArgs,
    /// Only this keyspace
    #[arg(long, value_name = "NAME")]
    keyspace: Option<String>,
    /// Only the last so many decisions of each keyspace
    #[arg(long, value_name = "N", conflicts_with = "pending")]
    last: Option<usize>,
    /// Only decisions that read or write this level
    #[arg(long, value_name = "L", conflicts_with = "pending", value_parser = clap::value_parser!(u8).range(0..32))]
    level: Option<u8>,
    /// Inputs, candidates and costs of every decision, not of the last alone
    #[arg(long, conflicts_with_all = ["pending", "json"])]
    details: bool,
    /// What would be compacted next, and how every rule stands
    #[arg(long)]
    pending: bool,
    /// Print JSON, one decision a line; with --pending one document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct InKeyspace<'a, T> {
    keyspace: &'a str,
    #[serde(flatten)]
    what: &'a T,
}

impl Explain {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let db = self.store.open_to_read()?;
        let keyspaces = match &self.keyspace {
            Some(name) => vec![self.store.keyspace(&db, name)?],
            None => all(&db)?,
        };
        if self.pending {
            self.pending(&keyspaces)?;
        } else if self.json {
            self.lines(&keyspaces)?;
        } else {
            let texts = keyspaces.iter().map(|keyspace| {
                let kept = keyspace.decisions();
                draw::decisions(keyspace, kept.len(), &self.chosen(kept), self.details)
            });
            print(&texts.collect::<Vec<_>>().join("\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Those of `decisions` that were asked for.
    fn chosen(&self, decisions: Vec<Arc<Decision>>) -> Vec<Arc<Decision>> {
        let wanted = |decision: &Arc<Decision>| self.level.is_none_or(|level| decision.touches(level));
        let mut decisions: Vec<_> = decisions.into_iter().filter(wanted).collect();
        let skip = self.last.map_or(0, |last| decisions.len().saturating_sub(last));
        decisions.drain(..skip);
        decisions
    }

    fn lines(&self, keyspaces: &[Keyspace]) -> anyhow::Result<()> {
        let mut output = Output::new();
        for keyspace in keyspaces {
            for decision in self.chosen(keyspace.decisions()) {
                let line = InKeyspace { keyspace: keyspace.name(), what: &*decision };
                writeln!(output, "{}", serde_json::to_string(&line)?)?;
            }
        }
        Ok(output.finish()?)
    }

    fn pending(&self, keyspaces: &[Keyspace]) -> anyhow::Result<()> {
        let pendings: Vec<Pending> = keyspaces.iter().map(Keyspace::pending).collect::<Result<_, _>>()?;
        let each = keyspaces.iter().zip(&pendings);
        if self.json {
            let all: Vec<_> = each.map(|(keyspace, what)| InKeyspace { keyspace: keyspace.name(), what }).collect();
            return print_json(&all);
        }
        let texts: Vec<_> = each.map(|(keyspace, pending)| draw::pending(keyspace, pending)).collect();
        Ok(print(&texts.join("\n"))?)
    }
}

fn all(db: &Db) -> anyhow::Result<Vec<Keyspace>> {
    db.list_keyspaces().iter().map(|name| Ok(db.keyspace(name)?)).collect()
}
