//! Policies of users' own, by name.
//!
//! A keyspace whose option `strategy` is `policy:NAME` is steered by the policy that the program registers under that name. The manifest keeps the
//! name, not the code: whoever opens the store to write must register it again, and is told so.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compaction::{CompactionPolicy, CutRule, LsmView, Plan, Strategy};
use crate::error::{Error, Result};
use crate::version::LevelId;

/// What a strategy option begins with that names a registered policy.
const PREFIX: &str = "policy:";

/// Compaction policies that a program registers, by name. See [`Env::policies`](crate::Env::policies).
///
/// ```
/// # use siltstone::compaction::{CompactionPolicy, LsmView, Plan};
/// # use siltstone::version::LevelId;
/// # struct Mine;
/// # impl CompactionPolicy for Mine {
/// #     fn name(&self) -> &str { "mine" }
/// #     fn pick(&self, _: &LsmView<'_>) -> Option<Plan> { None }
/// #     fn run_limit(&self, _: &LsmView<'_>, _: LevelId) -> u32 { 4 }
/// # }
/// # fn main() -> siltstone::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// let env = siltstone::Env { policies: siltstone::Policies::new().with("mine", Mine), ..Default::default() };
/// let mut options = siltstone::Options::default();
/// options.keyspace.strategy = "policy:mine".to_owned();
/// let db = siltstone::Db::open_with(folder.path().join("store"), options, env)?;
/// # db.close()
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Policies(BTreeMap<String, Arc<dyn CompactionPolicy>>);

impl Policies {
    /// None.
    pub fn new() -> Policies {
        Policies::default()
    }

    /// These and `policy`, which a keyspace's `strategy = "policy:NAME"` means from now on. A policy that had the name before is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, policy: impl CompactionPolicy + 'static) -> Policies {
        self.0.insert(name.into(), Arc::new(policy));
        self
    }

    /// What the option `strategy` means: a registered policy, a preset, or the text of a strategy file.
    pub(crate) fn resolve(&self, strategy: &str) -> Result<Arc<dyn CompactionPolicy>> {
        let Some(name) = named(strategy) else {
            return Ok(Arc::new(Strategy::resolve(strategy)?));
        };
        let missing = || {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            let there = if names.is_empty() { "none is".to_owned() } else { format!("there are {}", names.join(", ")) };
            Error::invalid(format!(
                "the compaction policy {name:?} is not registered in Env::policies ({there}); without it the store can be opened \
                 read-only"
            ))
        };
        self.0.get(name).cloned().ok_or_else(missing)
    }

    /// The same for a keyspace with these options, but for the strategy that they name.
    pub(crate) fn resolve_for(&self, strategy: &str, may_lose_oldest: bool) -> Result<Arc<dyn CompactionPolicy>> {
        let policy = self.resolve(strategy)?;
        allow(&*policy, may_lose_oldest)?;
        Ok(policy)
    }

    /// The same for a store that nothing is compacted in: a policy that is not registered is not needed.
    pub(crate) fn resolve_to_read(&self, strategy: &str) -> Result<Arc<dyn CompactionPolicy>> {
        match named(strategy) {
            Some(name) if !self.0.contains_key(name) => Ok(Arc::new(Unregistered(name.to_owned()))),
            _ => self.resolve(strategy),
        }
    }
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Whether a keyspace with this option may have `policy`.
pub(crate) fn allow(policy: &dyn CompactionPolicy, may_lose_oldest: bool) -> Result<()> {
    if may_lose_oldest || !policy.loses_oldest() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "strategy {} drops the oldest data, deleted or not, which the keyspace's option may_lose_oldest = true has to allow",
        policy.name()
    )))
}

fn named(strategy: &str) -> Option<&str> {
    strategy.trim().strip_prefix(PREFIX).map(str::trim)
}

/// Stands for a policy that only its own program knows.
struct Unregistered(String);

impl CompactionPolicy for Unregistered {
    fn name(&self) -> &str {
        &self.0
    }

    fn pick(&self, _: &LsmView<'_>) -> Option<Plan> {
        None
    }

    fn run_limit(&self, _: &LsmView<'_>, _: LevelId) -> u32 {
        1
    }

    fn cut(&self, view: &LsmView<'_>) -> CutRule {
        CutRule { file_bytes: view.sizes.file_bytes, align: false, grandparent_bytes: 0, guards: None }
    }
}
