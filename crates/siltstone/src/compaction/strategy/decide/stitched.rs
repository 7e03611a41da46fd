//! Tables that are too dead: merges have linked parts of them and rewritten others. When nothing else is due what is left of them is
//! rewritten where it is, the deadest table first, so that dead bytes are bounded at rest ([`Stitch::max_dead_percent`]).

use std::sync::Arc;

use super::super::super::granularity::Draft;
use super::super::super::layout::Shape;
use super::super::super::plan::{Place, Plan, PlanInput, Reuse, Stitch, places};
use super::super::super::trigger::Measure;
use super::super::Strategy;
use super::{Firing, Held, MAX_TRIED, is_free};
use crate::num::to_f64;
use crate::version::FileMeta;

/// What a record calls it.
pub(super) const DEAD_TABLE: &str = "dead-table";

impl Strategy {
    /// A rewrite of the file that is a slice of the deadest table, if that is more dead than it may be.
    pub(super) fn rewrite_dead(&self, shape: &Shape<'_>, held: &Held) -> Option<Plan> {
        let Reuse::Stitch(stitch) = self.reuse else { return None };
        let view = shape.view;
        let alive = view.version.sliced();
        let most = u64::from(stitch.max_dead_percent);
        let mut dead: Vec<(u64, Place, &Arc<FileMeta>)> = Vec::new();
        for (place, run) in places(view.version).filter(|_| !alive.is_empty()) {
            for file in run.files.iter().filter(|file| file.whole.is_some()) {
                let (bytes, alive) = (file.table_bytes(), alive.get(&file.table()).copied().unwrap_or(0));
                if !Stitch::may_live(bytes, alive, most) && !view.is_busy(file.id) {
                    let percent = u128::from(bytes.saturating_sub(alive)) * 100 / u128::from(bytes.max(1));
                    dead.push((u64::try_from(percent).unwrap_or(100), place, file));
                }
            }
        }
        dead.sort_by_key(|(percent, place, file)| (std::cmp::Reverse(*percent), *place, file.id));
        dead.into_iter().take(MAX_TRIED).find_map(|(percent, place, file)| {
            let measure = Measure { value: to_f64(percent), threshold: to_f64(most) };
            let firing = Firing { rule: None, level: place.level, target: None, measure, score: measure.score() };
            let input = PlanInput { level: place.level, run: place.run, files: vec![Arc::clone(file)] };
            let mut plan = self.finish(shape, &firing, Draft { inputs: vec![input], output: place });
            plan.record.trigger = DEAD_TABLE.to_owned();
            is_free(view, &plan, held).then_some(plan)
        })
    }
}
