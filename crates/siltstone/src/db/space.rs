//! The budget for space that merges take for a time (`extra_space_bytes`): see [`crate::compaction::space`].

use std::sync::Arc;

use super::core::{Core, KeyspaceCore};
use crate::compaction::plan::{Action, Plan};
use crate::compaction::space;
use crate::compaction::view::LsmView;
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{self, Bug};
use crate::version::FileMeta;

/// How far the estimate of what a merge writes is trusted at first, in percent; it grows when a merge has to be stopped.
pub(crate) const FIRST_TRUST_PERCENT: u64 = 115;

/// Whether a plan may begin.
pub(crate) enum Fit {
    /// This of it, with so many bytes reserved.
    Now(Box<Plan>, u64),
    /// It has to wait for other merges, or for replaced files to be deleted; if readers hold all of these, what who waits is told.
    Later(Option<Error>),
}

impl Core {
    /// What of a plan may begin now.
    ///
    /// # Errors
    /// `NoSpace` if nothing of it will ever fit.
    pub(crate) fn fit(
        &self,
        keyspace: &KeyspaceCore,
        view: &LsmView<'_>,
        plan: Plan,
        reserved: u64,
        trust_percent: u64,
    ) -> Result<Fit> {
        let budget = self.options.extra_space_bytes;
        if budget == 0 || plan.action != Action::Merge {
            return Ok(Fit::Now(Box::new(plan), 0));
        }
        let cost = |files: &[&Arc<FileMeta>]| space::worst_case(files, keyspace.options.file_bytes, trust_percent);
        let needed = cost(&plan.files().collect::<Vec<_>>());
        // In this order: what is given up in between counts as about to be deleted.
        let held = self.tables.purge_queue().held_bytes();
        let obsolete = self.tables.purge_queue().obsolete_bytes();
        let taken = reserved + if planted::active(Bug::ReplacedFilesUncounted) { 0 } else { obsolete };
        let left = budget.saturating_sub(taken);
        if needed <= left {
            return Ok(Fit::Now(Box::new(plan), needed));
        }
        if let Some(part) = space::cut(view, &plan, left, cost) {
            let needed = cost(&part.files().collect::<Vec<_>>());
            return Ok(Fit::Now(Box::new(part), needed));
        }
        if taken > held {
            return Ok(Fit::Later(None));
        }
        let what = format!(
            "extra_space_bytes is {budget}; \"{plan}\" in keyspace \"{}\" may take {needed} and no part of it fits",
            keyspace.name
        );
        if held == 0 {
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        let what = format!("{what} beside {held} of replaced files that iterators hold open");
        Ok(Fit::Later(Some(Error::new(ErrorKind::NoSpace, what))))
    }
}
