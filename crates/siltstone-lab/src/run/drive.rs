//! One phase: its clients do their operations, in real time on threads, or taking turns in virtual time.
//!
//! ```text
//!            closed loop                        open loop
//! latency    begin ..... end                    due .. (waits in a queue) .. begin ..... end
//! processing the same                                                        begin ..... end
//! ```
//!
//! In an open loop an operation that comes late has waited since it was due, so that a stall is charged to every operation that it delays
//! (luo19 section 3.2). The clients take the phase's operations in turn.
//!
//! In the simulated world one thread does everything. The client that may begin first goes first; of two, the one with the smaller number.
//! What an operation waits for (the disk, a stall) passes for all clients, what it costs beside that ([`World::operation_ns`]) for its own
//! client alone: clients compute side by side, and share one disk.

use std::collections::BTreeMap;
use std::iter::{Skip, StepBy};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use siltstone::io::Rng;
use siltstone::{Db, Keyspace};

use super::client::{Client, Outcome};
use super::gauge::{Gauges, Queue};
use super::stage::{Crew, Operations, Stage};
use super::tally::{Ended, Tally};
use crate::load::{Arrivals, Rate, Schedule, Wait, World};
use crate::num::{float, index};

/// Windows are no shorter: on disk, and in virtual time, where a phase may be over in less.
const WINDOW_NS: u64 = 100_000_000;
const SIM_WINDOW_NS: u64 = 1_000_000;
/// Operations of a simulated phase between two looks at whether to go on.
const TICK: u64 = 1 << 8;

/// Every so-many-th of the phase's times: the clients take them in turn.
type Dealt = StepBy<Skip<Schedule>>;

/// One client and its stream.
pub(super) struct Worker<'o> {
    pub(super) operations: Box<dyn Operations + 'o>,
    client: Client,
    tally: Tally,
    /// Whether it is one of the phase's own.
    is_own: bool,
    schedule: Option<Dealt>,
    think_ns: u64,
    /// Operations that wait for their batch.
    batched: Vec<Ended>,
}

impl<'o> Worker<'o> {
    pub(super) fn new(
        operations: Box<dyn Operations + 'o>,
        db: &Db,
        keyspaces: &[Keyspace],
        is_checked: bool,
    ) -> Worker<'o> {
        let client = Client::new(db, keyspaces, is_checked);
        Worker {
            operations,
            client,
            tally: Tally::new(1),
            is_own: true,
            schedule: None,
            think_ns: 0,
            batched: Vec::new(),
        }
    }
}

/// What is told of a phase while it runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Moment {
    /// The share of the phase that is over.
    pub(super) share: f64,
    /// Operations so far.
    pub(super) operations: u64,
}

/// What a phase came to.
pub(super) struct Driven {
    /// The phase's own clients.
    pub(super) own: Tally,
    /// Those beside them.
    pub(super) beside: Tally,
    pub(super) gauges: Gauges,
    pub(super) elapsed_ns: u64,
}

/// A phase to be done.
pub(super) struct Drive<'a> {
    pub(super) world: &'a dyn World,
    pub(super) is_sim: bool,
    pub(super) db: &'a Db,
    pub(super) stage: &'a Stage,
    pub(super) seed: u64,
    /// What earlier phases did, by their names.
    pub(super) measured: &'a BTreeMap<String, Rate>,
    /// Answers false to end it.
    pub(super) watch: &'a dyn Fn(Moment) -> bool,
}

impl Drive<'_> {
    /// Lets the first of `workers` do the phase, as many as it has clients.
    ///
    /// # Errors
    /// The first error of the store or a stream; `Cancelled` if told so.
    pub(super) fn run(&self, workers: &mut [Worker<'_>]) -> anyhow::Result<Driven> {
        let workers = &mut workers[..index(self.stage.clients())];
        let window_ns = if self.is_sim { SIM_WINDOW_NS } else { WINDOW_NS };
        let mut queue = Vec::new();
        let mut rest = &mut workers[..];
        for (n, crew) in self.stage.crews.iter().enumerate() {
            let own;
            (own, rest) = rest.split_at_mut(index(crew.clients));
            let schedule = self.schedule(n, crew)?;
            let clients = own.len();
            for (at, worker) in own.iter_mut().enumerate() {
                worker.client.begin(crew);
                worker.tally = Tally::new(window_ns);
                worker.schedule = schedule.clone().map(|schedule| schedule.skip(at).step_by(clients));
                (worker.is_own, worker.think_ns) = (n == 0, crew.think_ns);
            }
            queue.extend(schedule.map(|schedule| (schedule, self.stage.operations.filter(|_| n == 0))));
        }
        let mut gauges = Gauges::new(self.db, window_ns, Queue::new(queue.into_iter()), !self.is_sim);
        let elapsed_ns =
            if self.is_sim { self.simulate(workers, &mut gauges) } else { self.real(workers, &mut gauges) }?;
        let (mut own, mut beside) = (Tally::new(window_ns), Tally::new(window_ns));
        for worker in workers {
            let tally = std::mem::replace(&mut worker.tally, Tally::new(1));
            if worker.is_own { &mut own } else { &mut beside }.merge(tally);
        }
        Ok(Driven { own, beside, gauges, elapsed_ns })
    }

    /// The times of the `n`-th crew.
    fn schedule(&self, n: usize, crew: &Crew) -> anyhow::Result<Option<Schedule>> {
        let measured = crew.arrivals.needs().and_then(|phase| self.measured.get(phase).copied());
        let arrivals = crew.arrivals.arrivals(measured);
        arrivals.check().map_err(|what| anyhow!("phase {}: {what}", self.stage.name))?;
        let Arrivals::Open { stretches, spacing } = arrivals else { return Ok(None) };
        let rng = Rng::new(self.seed).split("arrivals").split(&self.stage.name).split(&n.to_string());
        Ok(Some(Schedule::new(&stretches, spacing, rng)))
    }

    fn limit_ns(&self) -> u64 {
        self.stage.duration_ns.unwrap_or(u64::MAX)
    }

    fn moment(&self, now_ns: u64, operations: u64) -> Moment {
        let of_operations = self.stage.operations.map_or(0.0, |all| float(operations) / float(all.max(1)));
        let of_time = self.stage.duration_ns.map_or(0.0, |all| float(now_ns) / float(all.max(1)));
        Moment { share: of_operations.max(of_time).min(1.0), operations }
    }

    /// Threads and the machine's clock. This thread samples the gauges.
    fn real(&self, workers: &mut [Worker<'_>], gauges: &mut Gauges) -> anyhow::Result<u64> {
        let start_ns = self.world.now_ns();
        let now_ns = || self.world.now_ns() - start_ns;
        let stop = AtomicBool::new(false);
        let counts: Vec<Count> = workers.iter().map(|_| Count::default()).collect();
        let total =
            |of: &dyn Fn(&Count) -> &AtomicU64| counts.iter().map(|count| of(count).load(Ordering::Relaxed)).sum();
        let (done, begun) = (|| total(&|count| &count.done), || total(&|count| &count.begun_late));
        let (mut own, mut left) = (workers.iter().filter(|worker| worker.is_own).count(), workers.len());
        let (ended, endings) = mpsc::channel();
        let clock = self.world.clock();
        let end = End { limit_ns: self.limit_ns(), is_of_time: self.stage.operations.is_none() };
        let mut elapsed_ns = 0;
        std::thread::scope(|scope| {
            for (worker, count) in workers.iter_mut().zip(&counts) {
                let (ended, stop, clock) = (ended.clone(), &stop, &*clock);
                scope.spawn(move || {
                    let result = worker.work(&|| clock.mono_ns() - start_ns, end, stop, count);
                    // Nobody listens any more if this thread's parent has panicked.
                    let _ = ended.send((worker.is_own, result));
                });
            }
            drop(ended);
            let (mut next_ns, mut result) = (WINDOW_NS, Ok(()));
            while left > 0 {
                match endings.recv_timeout(Duration::from_nanos(next_ns.saturating_sub(now_ns()))) {
                    Ok((is_own, one)) => {
                        left -= 1;
                        own -= usize::from(is_own);
                        if own == 0 && elapsed_ns == 0 {
                            elapsed_ns = now_ns();
                        }
                        if own == 0 || one.is_err() {
                            stop.store(true, Ordering::Relaxed);
                        }
                        result = result.and(one);
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        gauges.sample(self.db, now_ns(), begun());
                        next_ns += WINDOW_NS;
                        if !(self.watch)(self.moment(now_ns(), done())) {
                            stop.store(true, Ordering::Relaxed);
                            result = result.and(Err(super::stopped().into()));
                        }
                    }
                    // A client panicked; the scope passes that on.
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            result
        })?;
        gauges.sample(self.db, elapsed_ns.max(gauges.last_ns()), begun());
        Ok(elapsed_ns)
    }

    /// One thread and virtual time.
    fn simulate(&self, workers: &mut [Worker<'_>], gauges: &mut Gauges) -> anyhow::Result<u64> {
        let world = self.world;
        let start_ns = world.now_ns();
        let limit_ns = self.limit_ns();
        // When each client may begin its next operation; none if it has ended.
        let mut turns: Vec<Option<Turn>> = workers.iter_mut().map(|worker| Some(worker.turn(0))).collect();
        let (mut done, mut begun, mut end_ns, mut steps) = (0u64, 0u64, 0, 0u64);
        while workers.iter().zip(&turns).any(|(worker, turn)| worker.is_own && turn.is_some()) {
            let next = turns.iter().enumerate().filter_map(|(n, turn)| Some((turn.as_ref()?.begin_ns, n))).min();
            let Some((begin_ns, n)) = next.filter(|(begin_ns, _)| *begin_ns < limit_ns) else { break };
            world.wait_until(start_ns + begin_ns);
            let began_ns = world.now_ns() - start_ns;
            if began_ns >= limit_ns {
                break;
            }
            let due_ns = turns[n].take().and_then(|turn| turn.due_ns);
            let worker = &mut workers[n];
            let Some(op) = worker.operations.next()? else {
                end_ns = end_ns.max(worker.last_batch(&|| world.now_ns() - start_ns)?);
                continue;
            };
            let kind = op.kind;
            let mut outcome = worker.client.perform(&op)?;
            while outcome == Outcome::Part {
                outcome = worker.rest_of_row()?;
            }
            let ended_ns = world.now_ns() - start_ns + world.operation_ns();
            worker.ended(outcome, Ended { kind, due_ns, began_ns, ended_ns, found: 0 });
            turns[n] = Some(worker.turn(ended_ns));
            if worker.is_own {
                end_ns = end_ns.max(ended_ns);
                done += 1;
            }
            begun += u64::from(due_ns.is_some());
            steps += 1;
            while let Some(at_ns) = gauges.due(ended_ns) {
                gauges.sample(self.db, at_ns, begun);
            }
            if steps.is_multiple_of(TICK) && !(self.watch)(self.moment(ended_ns, done)) {
                return Err(super::stopped().into());
            }
        }
        for worker in workers.iter_mut() {
            end_ns = end_ns.max(worker.last_batch(&|| world.now_ns() - start_ns)?);
        }
        let elapsed_ns = self.stage.duration_ns.filter(|_| self.stage.operations.is_none()).unwrap_or(end_ns);
        world.wait_until(start_ns + elapsed_ns);
        while let Some(at_ns) = gauges.due(elapsed_ns) {
            gauges.sample(self.db, at_ns, begun);
        }
        gauges.sample(self.db, elapsed_ns, begun);
        Ok(elapsed_ns)
    }
}

/// What a client tells the thread that looks on.
#[derive(Default)]
struct Count {
    done: AtomicU64,
    /// Operations of an open loop that have begun.
    begun_late: AtomicU64,
}

/// What ends a phase in real time.
#[derive(Clone, Copy)]
struct End {
    limit_ns: u64,
    /// Nothing but the limit.
    is_of_time: bool,
}

/// When a client may begin.
struct Turn {
    begin_ns: u64,
    due_ns: Option<u64>,
}

impl Worker<'_> {
    /// Its turn after `free_ns`.
    fn turn(&mut self, free_ns: u64) -> Turn {
        let due_ns = self.schedule.as_mut().and_then(Iterator::next);
        let free_ns = if free_ns > 0 { free_ns + self.think_ns } else { 0 };
        Turn { begin_ns: due_ns.unwrap_or(0).max(free_ns), due_ns }
    }

    /// Does operations in real time until there are none, or it is told to stop.
    fn work(
        &mut self,
        now_ns: &dyn Fn() -> u64,
        End { limit_ns, is_of_time }: End,
        stop: &AtomicBool,
        count: &Count,
    ) -> anyhow::Result<()> {
        let wait = Wait::default();
        let goes_on = || !stop.load(Ordering::Relaxed);
        // What is taken from the stream is done: those after it count on that.
        let mut free_ns = 0;
        while goes_on() && free_ns < limit_ns {
            let due_ns = self.schedule.as_mut().and_then(Iterator::next);
            if due_ns.is_some_and(|due_ns| due_ns >= limit_ns) {
                // Nothing is due before the end, which may be far away.
                if is_of_time {
                    wait.until(now_ns, limit_ns, &goes_on);
                }
                break;
            }
            let Some(op) = self.operations.next()? else { break };
            let kind = op.kind;
            if let Some(due_ns) = due_ns
                && !wait.until(now_ns, due_ns, &goes_on)
            {
                break;
            }
            let began_ns = now_ns();
            count.begun_late.fetch_add(u64::from(due_ns.is_some()), Ordering::Relaxed);
            let mut outcome = self.client.perform(&op)?;
            while outcome == Outcome::Part {
                outcome = self.rest_of_row()?;
            }
            free_ns = now_ns();
            self.ended(outcome, Ended { kind, due_ns, began_ns, ended_ns: free_ns, found: 0 });
            count.done.fetch_add(u64::from(self.is_own), Ordering::Relaxed);
            if self.think_ns > 0 {
                free_ns = free_ns.saturating_add(self.think_ns).min(limit_ns);
                wait.until(now_ns, free_ns, &goes_on);
            }
        }
        self.last_batch(now_ns).map(|_| ())
    }

    /// Writes what is left of a batch. Answers when that was over, of one of the phase's own clients, else 0.
    fn last_batch(&mut self, now_ns: &dyn Fn() -> u64) -> anyhow::Result<u64> {
        if !self.client.write_batch()? {
            return Ok(0);
        }
        let ended_ns = now_ns();
        self.batch_ended(ended_ns);
        Ok(if self.is_own { ended_ns } else { 0 })
    }

    /// The next part of a row that has begun.
    fn rest_of_row(&mut self) -> anyhow::Result<Outcome> {
        let op = self.operations.next()?.context("a row ends with a part that says another one follows")?;
        Ok(self.client.perform(&op)?)
    }

    fn ended(&mut self, outcome: Outcome, ended: Ended) {
        match outcome {
            // Its row has not ended.
            Outcome::Part => {}
            Outcome::Done(found) => self.tally.add(&Ended { found, ..ended }),
            Outcome::Batched(found) => self.batched.push(Ended { found, ..ended }),
            Outcome::BatchWritten(found) => {
                self.batched.push(Ended { found, ..ended });
                self.batch_ended(ended.ended_ns);
            }
        }
    }

    /// The writes of a batch end together.
    fn batch_ended(&mut self, ended_ns: u64) {
        for batched in self.batched.drain(..) {
            self.tally.add(&Ended { ended_ns, ..batched });
        }
    }
}
