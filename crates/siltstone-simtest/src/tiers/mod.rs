//! The searches. Each returns a [`Report`](crate::pool::Report); none knows of another.

pub mod crash;
pub mod damage;
pub mod deadline;
pub mod equal;
pub mod faults;
pub mod forecast;
pub mod kill9;
pub mod space;
pub mod swarm;
pub mod switch;
pub mod zoo;

use std::time::Duration;

/// How much a search may do.
#[derive(Clone, Debug)]
pub struct Budget {
    /// From which all seeds are derived.
    pub base: u64,
    /// How many worlds run side by side.
    pub jobs: usize,
    /// Stop after this time.
    pub limit: Option<Duration>,
    /// Print nothing and stop at the first violation.
    pub hunting: bool,
}

impl Budget {
    /// A pool within this budget.
    pub(crate) fn pool(&self, tier: &str) -> crate::pool::Pool {
        let pool = crate::pool::Pool::new(tier, self.jobs, self.limit);
        if self.hunting { pool.hunting() } else { pool }
    }

    /// The `n`th seed.
    pub fn seed(&self, n: u64) -> u64 {
        // 53 bits: a seed survives JSON.
        siltstone::io::Rng::new(self.base ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64() >> 11
    }
}
