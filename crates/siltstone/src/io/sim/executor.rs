//! Lanes on one thread: the seed chooses which steps next.
//!
//! No lock is held during a step, so a step may wake, notify and wait itself. A lane that is in a step is not entered again:
//! while it waits, the others run. Who waits is asked again only once he was notified, as with threads: a change that nobody is told of
//! leaves him waiting for ever here as well.
//!
//! # Time
//!
//! Tests of safety run the lanes one after another: what a step takes passes for everybody. For measurements that is wrong, since no
//! user waits while a merge writes its page. There the lanes run *side by side*: what a step waits for passes for its lane alone, which
//! steps again when that is over; meanwhile users and other lanes go on. Whoever waits for what a step changes goes on when the step is over;
//! whoever does not wait sees it from the step's start on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::{Clock, Executor, Lane, LaneId, LaneStep, Rng, Workers};
use super::SimClock;
use super::content::mix;
use crate::error::{Error, ErrorKind, Result};
use crate::num::{to_u64, to_usize};

/// The steps in one wait after which something must be wrong.
const WATCHDOG_STEPS: u64 = 1_000_000;
/// What a step takes, beyond what the device charges: no loop can be busy without time passing.
const STEP_COST_NS: u64 = 10_000;

/// Runs lanes in virtual time. Cheap to clone: clones are the same executor. A store that is reopened may start it again.
#[derive(Clone)]
pub struct SimExecutor {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<SimClock>,
    seed: u64,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    /// Of all stores started, in order. Stopped ones go when no running store's lie behind them.
    lanes: Vec<SimLane>,
    steps: u64,
    step_cost_ns: u64,
    side_by_side: bool,
    trace: u64,
}

struct SimLane {
    /// `None` once stopped: whatever the step holds on to is let go.
    step: Option<Arc<dyn Fn() -> LaneStep + Send + Sync>>,
    name_hash: u64,
    due: Due,
    /// What its last step waited for is over then; always over when lanes run one after another.
    busy_until_ns: u64,
    /// In a step now.
    running: bool,
    /// Woken while in a step: what the step then says is out of date.
    woken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Now,
    At(u64),
    Never,
}

impl SimLane {
    fn can_run(&self, now_ns: u64) -> bool {
        let due = match self.due {
            Due::Now => true,
            Due::At(at_ns) => at_ns <= now_ns,
            Due::Never => false,
        };
        due && self.busy_until_ns <= now_ns && !self.running && self.step.is_some()
    }

    /// When it can run if nobody wakes it.
    fn next_ns(&self) -> Option<u64> {
        match self.due {
            _ if self.running || self.step.is_none() => None,
            Due::Now => Some(self.busy_until_ns),
            Due::At(at_ns) => Some(at_ns.max(self.busy_until_ns)),
            Due::Never => None,
        }
    }
}

impl SimExecutor {
    /// An executor without lanes.
    pub fn new(clock: &Arc<SimClock>, seed: u64) -> SimExecutor {
        let state = State {
            rng: Rng::new(seed).split("sim executor"),
            lanes: Vec::new(),
            steps: 0,
            step_cost_ns: STEP_COST_NS,
            side_by_side: false,
            trace: 0,
        };
        SimExecutor { shared: Arc::new(Shared { clock: clock.clone(), seed, state: Mutex::new(state) }) }
    }

    /// One step of one lane that can run. False if none can.
    pub fn step_random(&self) -> bool {
        self.shared.step_random()
    }

    /// Steps until no lane can run at the present time.
    ///
    /// # Panics
    /// After a million steps.
    pub fn run_until_idle(&self) {
        let mut steps = 0;
        while self.shared.step_random() {
            self.shared.watch(&mut steps, "run_until_idle");
        }
    }

    /// Lets `ns` nanoseconds pass, during which the lanes run.
    ///
    /// # Panics
    /// After a million steps.
    pub fn run_for(&self, ns: u64) {
        self.shared.run_for(ns);
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.shared.state.lock().steps
    }

    /// A hash over which lane stepped when, and what it said.
    pub fn trace_hash(&self) -> u64 {
        self.shared.state.lock().trace
    }

    /// Sets the virtual time that a step takes beyond what the device charges; 10 µs at first, never 0.
    pub fn set_step_cost_ns(&self, ns: u64) {
        self.shared.state.lock().step_cost_ns = ns.max(1);
    }

    /// Whether lanes run side by side instead of one after another, as at first.
    pub fn set_side_by_side(&self, on: bool) {
        self.shared.state.lock().side_by_side = on;
    }

    /// The next moment at which a lane that waits wants to go on.
    pub fn next_deadline(&self) -> Option<u64> {
        self.shared.next_deadline()
    }
}

impl Executor for SimExecutor {
    fn start(&self, lanes: Vec<Lane>) -> Result<Box<dyn Workers>> {
        let mut state = self.shared.state.lock();
        let first = state.lanes.len();
        state.lanes.extend(lanes.into_iter().map(|lane| SimLane {
            step: Some(lane.step),
            name_hash: crate::key::hash(lane.name.as_bytes()),
            due: Due::Now,
            busy_until_ns: 0,
            running: false,
            woken: false,
        }));
        let lanes = first..state.lanes.len();
        let (shared, stopped, notified) = (self.shared.clone(), AtomicBool::new(false), AtomicU64::new(0));
        Ok(Box::new(SimWorkers { shared, lanes, stopped, notified }))
    }
}

impl Shared {
    fn step_random(&self) -> bool {
        self.step().is_some()
    }

    /// The same; returns when the step is over.
    fn step(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let now_ns = self.clock.mono_ns();
        let can_run = to_u64(state.lanes.iter().filter(|lane| lane.can_run(now_ns)).count());
        if can_run == 0 {
            return None;
        }
        let chosen = to_usize(state.rng.below(can_run));
        let index = state.lanes.iter().enumerate().filter(|(_, lane)| lane.can_run(now_ns)).nth(chosen);
        let index = index.map(|(index, _)| index)?;
        let lane = &mut state.lanes[index];
        let step = lane.step.clone()?;
        (lane.running, lane.woken) = (true, false);
        state.steps += 1;
        let (cost_ns, alone) = (state.step_cost_ns, state.side_by_side);
        drop(state);

        if alone {
            self.clock.begin_alone();
        }
        self.clock.advance(cost_ns);
        let said = step();
        // If this was the last owner, what it drops may call back.
        drop(step);

        let mut state = self.state.lock();
        let now_ns = if alone { self.clock.end_alone() } else { self.clock.mono_ns() };
        let lane = &mut state.lanes[index];
        lane.running = false;
        if alone {
            lane.busy_until_ns = now_ns;
        }
        lane.due = match said {
            LaneStep::Worked => Due::Now,
            _ if lane.woken => Due::Now,
            LaneStep::Idle => Due::Never,
            LaneStep::IdleFor(time) => Due::At(now_ns.saturating_add(nanos(time))),
        };
        let (name, said) = (lane.name_hash, if said == LaneStep::Worked { 1 } else { 0 });
        state.trace = [name, now_ns, said].into_iter().fold(state.trace, mix);
        Some(now_ns)
    }

    fn next_deadline(&self) -> Option<u64> {
        self.state.lock().lanes.iter().filter_map(SimLane::next_ns).min()
    }

    /// Runs `others` for a caller that waits. If that is a lane in a step, everybody waits with it: its time becomes the others'.
    fn among_others<T>(&self, others: impl FnOnce() -> T) -> T {
        if !self.clock.is_alone() {
            return others();
        }
        let own_ns = self.clock.end_alone();
        self.clock.advance_to(own_ns);
        let result = others();
        self.clock.begin_alone();
        result
    }

    fn run_for(&self, ns: u64) {
        self.run_until(self.clock.mono_ns().saturating_add(ns));
    }

    fn run_until(&self, end_ns: u64) {
        let mut steps = 0;
        while self.clock.mono_ns() < end_ns {
            if self.step_random() {
                self.watch(&mut steps, "sleep");
            } else {
                self.clock.advance_to(self.next_deadline().unwrap_or(end_ns).min(end_ns));
            }
        }
    }

    fn watch(&self, steps: &mut u64, what: &str) {
        *steps += 1;
        assert!(*steps < WATCHDOG_STEPS, "simulation: {what} took {steps} steps; seed {}", self.seed);
    }
}

/// The lanes of one store.
struct SimWorkers {
    shared: Arc<Shared>,
    lanes: std::ops::Range<usize>,
    /// Once set, `lanes` may be another store's.
    stopped: AtomicBool,
    /// Counts `notify` calls.
    notified: AtomicU64,
}

impl Workers for SimWorkers {
    fn wake(&self, lane: LaneId) {
        let mut state = self.shared.state.lock();
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        if let Some(lane) = state.lanes[self.lanes.clone()].get_mut(lane.0) {
            (lane.due, lane.woken) = (Due::Now, true);
        }
    }

    fn notify(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
    }

    fn wait(&self, done: &mut dyn FnMut() -> bool) -> Result<()> {
        self.shared.among_others(|| {
            let (mut steps, mut over_ns) = (0, 0);
            loop {
                let seen = self.notified.load(Ordering::Relaxed);
                if done() {
                    break;
                }
                while self.notified.load(Ordering::Relaxed) == seen {
                    self.shared.watch(&mut steps, "wait");
                    if let Some(own_ns) = self.shared.step() {
                        over_ns = own_ns;
                        continue;
                    }
                    let Some(deadline_ns) = self.shared.next_deadline() else {
                        let what =
                            "simulation: deadlock: a caller waits, no lane can run, and no time will change that";
                        return Err(Error::new(ErrorKind::Io, what));
                    };
                    self.shared.clock.advance_to(deadline_ns);
                }
            }
            self.shared.run_until(over_ns);
            Ok(())
        })
    }

    fn sleep(&self, time: Duration) {
        if self.shared.clock.is_alone() {
            self.shared.clock.advance(nanos(time));
        } else {
            self.shared.run_for(nanos(time));
        }
    }

    fn stop(&self) {
        let mut state = self.shared.state.lock();
        if self.stopped.swap(true, Ordering::Relaxed) {
            return;
        }
        let lanes = &mut state.lanes;
        let steps: Vec<_> = lanes[self.lanes.clone()].iter_mut().map(|lane| lane.step.take()).collect();
        while lanes.last().is_some_and(|lane| lane.step.is_none() && !lane.running) {
            lanes.pop();
        }
        // Outside the lock: a step may own the store, whose end may call back.
        drop(state);
        drop(steps);
        self.notify();
    }
}

impl Drop for SimWorkers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
