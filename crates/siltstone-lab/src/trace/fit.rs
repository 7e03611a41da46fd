//! A trace is described as a workload spec.
//!
//! ```text
//! operations --observe--> kinds by the thousand --phases--> where the mix shifts
//!            --observe--> by phase and kind: which keys, how long --laws--> the law that comes nearest, and how near
//! ```
//!
//! Two passes over the file; in memory are the keys' hashes and a bounded sample of each kind's accesses. Nearness is a Kolmogorov-Smirnov
//! distance: the largest difference of two distribution functions, 0 for equal ones.

mod arrivals;
mod laws;
mod observe;
mod phases;
mod toml;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Source;
use crate::workload::Spec;
use observe::{Observer, Population};

pub use arrivals::ArrivalFit;
pub use laws::{AccessFit, AccessLaw, SizeFit, SizeShape};

/// A distance up to which a law is said to fit well.
pub const GOOD_DISTANCE: f64 = 0.05;

/// A trace as a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    /// The spec, as TOML that `siltstone run` takes.
    pub spec: String,
    /// Different keys that were stored, or were there.
    pub keys: u64,
    /// Of these, keys that were there before the trace began, as reads tell.
    pub preloaded: u64,
    /// Bytes of a key.
    pub key_bytes: SizeFit,
    /// Bytes of a value; none without puts.
    pub value_bytes: Option<SizeFit>,
    /// The share of the inserts that come in ascending order of keys.
    pub sorted_inserts: f64,
    /// The parts between which the mix shifts.
    pub phases: Vec<PhaseFit>,
    /// What a spec cannot say of it.
    pub notes: Vec<String>,
}

/// A part of the trace with one mix.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseFit {
    /// Its name in the spec.
    pub name: String,
    /// Operations; each write of a batch is one.
    pub operations: u64,
    /// Seconds; none where nobody knows.
    pub elapsed_s: Option<f64>,
    /// Writes of one batch.
    pub batch: u64,
    /// What most writes survive.
    pub durability: &'static str,
    /// Of the lookups, those that found nothing.
    pub empty_lookups: Option<f64>,
    /// When operations come.
    pub arrivals: ArrivalFit,
    /// What is done.
    pub mix: Vec<OpFit>,
}

/// One kind of operation in a phase.
#[derive(Clone, Debug, Serialize)]
pub struct OpFit {
    /// As a spec calls it.
    pub kind: &'static str,
    /// Operations.
    pub count: u64,
    /// Of inserts: of keys that had been deleted.
    pub reused: u64,
    /// Its share of the phase.
    pub share: f64,
    /// Which keys; none for kinds that choose none.
    pub access: Option<AccessFit>,
    /// Records of a scan, keys of a multi-get.
    pub length: Option<SizeFit>,
    /// Bytes of a prefix.
    pub prefix_bytes: Option<u64>,
}

/// Describes what `open` opens, which is read twice. `watch` is told the operations so far and the share of the work, and ends it by answering false.
///
/// # Errors
/// Damage; a broken line; a trace without operations, or with such as no spec allows; if it was ended.
pub fn fit(
    name: &str,
    open: &mut dyn FnMut() -> Result<Source>,
    watch: &mut dyn FnMut(u64, f64) -> bool,
) -> Result<Fit> {
    let mut population = Population::default();
    let mut source = open()?;
    let mut windows = phases::Windows::default();
    let mut first = Observer::first(&mut population, source.header().is_untimed);
    first.read(&mut source, &mut |done, share| watch(done, share / 2.0), &mut |kind, done| windows.add(kind, done))?;
    let notes = first.notes(&source);
    ensure!(windows.operations() > 0, "there are no operations in it that could be described");
    if population.preloaded() > 0 {
        windows.join_puts();
    }
    let parts = windows.parts();
    let mut source = open()?;
    let is_untimed = source.header().is_untimed;
    let mut second = Observer::second(&population, &parts, is_untimed);
    second.read(&mut source, &mut |done, share| watch(done, 0.5 + share / 2.0), &mut |_, _| {})?;
    let phases = second.phases();
    let preloaded = population.preloaded();
    let mut fit = Fit {
        spec: String::new(),
        keys: population.keys(),
        preloaded,
        key_bytes: laws::fit_sizes(&population.key_bytes),
        value_bytes: (!population.value_bytes.is_empty()).then(|| laws::fit_sizes(&population.value_bytes)),
        sorted_inserts: population.sorted_inserts(),
        phases,
        notes,
    };
    let keyspaces = population.keyspaces();
    fit.spec = toml::text(name, &mut fit, &keyspaces);
    Spec::parse(&fit.spec, name).context("no workload spec can say what is in it")?;
    Ok(fit)
}
