//! Which of the running merges gets the disk, and when writers wait. Pure, like `compaction`: functions from plain data to plain data, so
//! that the same code decides in the store, in a simulation in virtual time, and in a test.
//!
//! A [`Scheduler`] looks at the [progress](MergeProgress) of every merge that has been chosen and gives each a [`Share`]: a weight, and the
//! reason why it waits if it does. A merge advances in short steps, so a share that is taken away takes effect at the border of the
//! step. From the shares [`turn`] makes turns: the merge that had least of what is due to it steps next.
//!
//! | scheduler | who steps | source |
//! | --- | --- | --- |
//! | [`single`] | the oldest merge, to its end | luo19 section 5.1.3 |
//! | [`fair`] | all, with equal shares | luo19 section 5.1.3 |
//! | [`greedy`] | those with the least left to read | luo19 section 5.1.5 |
//! | [`spring_gear`] | all, but none ahead of the merge that makes room for it | bLSM |
//! | [`silk`] | merges out of L0 first, deeper ones with what the foreground leaves | SILK |
//! | [`score`] | the merge that was most due when it was chosen | LevelDB; luo19 section 6.1 |
//!
//! When writers wait is the matter of the [`constraint`] (how many runs there may be), the [`write_control`] (what happens until there) and
//! the [`contract`] (what is sustained, what is owed, how long a write may wait). These are options of a keyspace.
//!
//! Whatever the scheduler, a merge that must end soon for `delete_by` goes first, and one that a user has paused waits.

pub mod constraint;
pub mod contract;
pub mod fair;
pub mod greedy;
pub mod keyspaces;
mod progress;
pub mod score;
pub mod silk;
pub mod single;
pub mod spring_gear;
#[cfg(test)]
mod tests;
pub mod turn;
pub mod write_control;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::compaction::{CompactionPolicy, LsmView, Plan};
use crate::kind;

pub use crate::io::WorkClass;
pub use constraint::Constraint;
pub use greedy::Greedy;
pub use score::Score;
pub use silk::Silk;
pub use spring_gear::SpringGear;
pub use write_control::WriteControl;

/// A full share.
pub const FULL: u32 = 1000;

/// What a scheduler may know of a merge that has been chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeProgress {
    /// The job's number: a smaller one was chosen earlier.
    pub job: u64,
    /// Which tree it belongs to.
    pub tree: u32,
    /// The shallowest level that it reads.
    pub from_level: u8,
    /// The level that it writes.
    pub to_level: u8,
    /// What it is for.
    pub class: WorkClass,
    /// Bytes of its input.
    pub input_bytes: u64,
    /// Bytes of its input that are still to be read.
    pub left_bytes: u64,
    /// How many sorted runs the tree will have less when it ends.
    pub fewer_runs: u32,
    /// How due it was when it was chosen: its trigger's value over the threshold, in thousandths.
    pub score_permille: u64,
    /// Bytes that leave the shallowest level that it reads, if it takes the whole of it into a deeper one; otherwise 0.
    pub room_bytes: u64,
    /// Bytes of the level that it writes that stay there and that it does not rewrite.
    pub stays_bytes: u64,
    /// Bytes that it brings to the level that it writes, at most.
    pub adds_bytes: u64,
    /// It must end soon, or a promised date is missed.
    pub urgent: bool,
    /// It may not step now: a user has paused it, or its own rate is used up.
    pub held: bool,
}

impl MergeProgress {
    /// The share of its input that it has merged, in thousandths.
    pub fn done_permille(&self) -> u64 {
        let done = u128::from(self.input_bytes.saturating_sub(self.left_bytes));
        u64::try_from(done * 1000 / u128::from(self.input_bytes.max(1))).unwrap_or(1000)
    }
}

/// What a merge gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Its part of the bandwidth, in proportion to the weights of the others; 0 if it may not step.
    pub weight: u32,
    /// Why.
    pub why: Why,
}

impl Share {
    /// The whole of what one merge can get.
    pub const FULL: Share = Share { weight: FULL, why: Why::Steps };

    /// Nothing, and why.
    pub const fn none(why: Why) -> Share {
        Share { weight: 0, why }
    }
}

/// Why a merge steps or waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// It steps.
    Steps,
    /// This job goes first: it was chosen earlier.
    Older(u64),
    /// This job goes first: less of it is left for each run that goes away.
    Smaller(u64),
    /// This job goes first: it was more due.
    MoreDue(u64),
    /// This job goes first: it is of a class that does.
    FirstClass(u64),
    /// This job goes first: a date depends on it.
    Urgent(u64),
    /// This job must make room in the level that this one writes.
    Room(u64),
    /// It is paused, or its own rate is used up.
    Held,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Steps => write!(f, "steps"),
            Why::Older(job) => write!(f, "waits for job {job}, which was chosen earlier"),
            Why::Smaller(job) => write!(f, "waits for job {job}, which has less left"),
            Why::MoreDue(job) => write!(f, "waits for job {job}, which was more due"),
            Why::FirstClass(job) => write!(f, "waits for job {job}, whose class goes first"),
            Why::Urgent(job) => write!(f, "waits for job {job}, which must end by a date"),
            Why::Room(job) => write!(f, "waits for job {job}, which makes room for it"),
            Why::Held => write!(f, "is paused, or its own rate is used up"),
        }
    }
}

/// Which of the running merges gets the disk. See the [module](self).
///
/// In options a word (`scheduler = "fair"`), or a table with parameters (`scheduler = { kind = "greedy", width = 1 }`).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scheduler {
    /// One merge at a time, the oldest, to its end.
    Single,
    /// All merges step and share the bandwidth evenly: to measure what a store can sustain.
    Fair,
    /// The merges with the least left go first.
    Greedy(Greedy),
    /// No merge gets ahead of the one that makes room for it.
    SpringGear(SpringGear),
    /// Merges out of L0 first; deeper ones get what the foreground leaves.
    Silk(Silk),
    /// The merge that was most due goes first.
    Score(Score),
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler::Greedy(Greedy::default())
    }
}

impl Scheduler {
    /// The names, as options spell them.
    pub const NAMES: [&'static str; 6] = ["single", "fair", "greedy", "spring-gear", "silk", "score"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Scheduler::Single => "single",
            Scheduler::Fair => "fair",
            Scheduler::Greedy(_) => "greedy",
            Scheduler::SpringGear(_) => "spring-gear",
            Scheduler::Silk(_) => "silk",
            Scheduler::Score(_) => "score",
        }
    }

    /// The scheduler of this name with the parameters that it has by default, or the one that a table as in an options file says.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is none, and for wrong parameters; it lists what there is.
    pub fn from_text(text: &str) -> crate::Result<Scheduler> {
        #[derive(Deserialize)]
        struct Line {
            scheduler: Scheduler,
        }
        let text = text.trim();
        let value = if text.starts_with('{') { text.to_owned() } else { format!("{text:?}") };
        let line: Line = toml::from_str(&format!("scheduler = {value}\n"))
            .map_err(|error| crate::Error::invalid(format!("scheduler {text}: {}", error.message())))?;
        line.scheduler.validate().map_err(crate::Error::invalid)?;
        Ok(line.scheduler)
    }

    /// What is wrong with its parameters.
    pub(crate) fn validate(&self) -> Result<(), String> {
        match self {
            Scheduler::Greedy(greedy) => greedy.validate(),
            Scheduler::SpringGear(gear) => gear.validate(),
            Scheduler::Silk(silk) => silk.validate(),
            Scheduler::Single | Scheduler::Fair | Scheduler::Score(_) => Ok(()),
        }
    }

    /// The plan as this scheduler wants merges to be: `plan` itself but for `score` with `exact_l0`.
    pub fn shape(&self, policy: &dyn CompactionPolicy, view: &LsmView<'_>, plan: Plan) -> Plan {
        match self {
            Scheduler::Score(Score { exact_l0: true }) => score::exact_l0(policy, view, plan),
            _ => plan,
        }
    }

    /// Gives every job its share, in the order of `jobs`. `lanes` merges can step at once: about as many as are needed to fill the
    /// bandwidth. Allocates nothing; takes time in proportion to the square of the jobs, of which there are few.
    ///
    /// # Panics
    /// If `shares` is not as long as `jobs`.
    pub fn next(&self, jobs: &[MergeProgress], lanes: u32, shares: &mut [Share]) {
        assert_eq!(jobs.len(), shares.len(), "a share for each job");
        match self {
            Scheduler::Single => single::next(jobs, shares),
            Scheduler::Fair => fair::next(jobs, shares),
            Scheduler::Greedy(greedy) => greedy.next(jobs, lanes, shares),
            Scheduler::SpringGear(gear) => gear.next(jobs, shares),
            Scheduler::Silk(silk) => silk.next(jobs, lanes, shares),
            Scheduler::Score(score) => score.next(jobs, lanes, shares),
        }
    }
}

/// Full shares for the `width` jobs that come first by `key`, nothing for the others. Jobs that are held neither step nor stand in the
/// way; what is urgent comes before all else, and of equal jobs the older. `why` tells a job what goes before it.
fn first_by<K: Ord>(
    jobs: &[MergeProgress],
    width: u32,
    shares: &mut [Share],
    key: impl Fn(&MergeProgress) -> K,
    why: impl Fn(u64) -> Why,
) {
    let rank = |job: &MergeProgress| (!job.urgent, key(job), job.job);
    for (job, share) in jobs.iter().zip(shares.iter_mut()) {
        if job.held {
            *share = Share::none(Why::Held);
            continue;
        }
        let mine = rank(job);
        let (mut before, mut next) = (0, None::<&MergeProgress>);
        for other in jobs.iter().filter(|other| !other.held && rank(other) < mine) {
            before += 1;
            if next.is_none_or(|next| rank(other) > rank(next)) {
                next = Some(other);
            }
        }
        *share = match next {
            Some(next) if before >= width.max(1) && next.urgent && !job.urgent => Share::none(Why::Urgent(next.job)),
            Some(next) if before >= width.max(1) => Share::none(why(next.job)),
            _ => Share::FULL,
        };
    }
}

/// The derived form: always a table.
struct AsTable<'a>(&'a Scheduler);

impl Serialize for AsTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Scheduler::serialize(self.0, serializer)
    }
}

impl Serialize for Scheduler {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = Scheduler::from_text(self.name()).is_ok_and(|plain| plain == *self);
        if plain { serializer.serialize_str(self.name()) } else { AsTable(self).serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Scheduler {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scheduler, D::Error> {
        kind::read(deserializer, Scheduler::deserialize, |read| toml::Value::try_from(AsTable(read)))
    }
}

impl fmt::Display for Scheduler {
    /// As options spell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kind::write(f, self)
    }
}
