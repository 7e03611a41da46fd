//! Worlds side by side: a few threads, each running one world at a time, and a watch over worlds that hang.
//!
//! This is the only place of the crate, besides the `kill9` tier, where real time and threads occur.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::store::{Check, Violation};

/// A world that takes longer than this hangs, unless its tier says otherwise.
const HANG: Duration = Duration::from_secs(120);

/// What a tier has done.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Its name.
    pub tier: String,
    /// What it counted.
    pub counts: BTreeMap<String, u64>,
    /// Rare states.
    pub counters: Arc<Counters>,
    /// What went wrong, with the command that shows it again.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub seconds: f64,
}

/// Something went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What.
    pub what: String,
    /// The arguments of `siltstone-sim` that show it again.
    pub replay: String,
}

/// What runs a tier: how many threads, how long, and where counts go.
pub struct Pool {
    tier: String,
    jobs: usize,
    deadline: Option<Instant>,
    start: Instant,
    counts: Mutex<BTreeMap<String, u64>>,
    counters: Arc<Counters>,
    failures: Mutex<Vec<Failure>>,
    /// Stop at this many failures.
    most_failures: usize,
    stop: AtomicBool,
    quiet: bool,
    patience: Duration,
}

thread_local! {
    static DOING: RefCell<String> = const { RefCell::new(String::new()) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Says what this thread is doing, for the message of a panic.
pub fn doing(what: std::fmt::Arguments<'_>) {
    DOING.with_borrow_mut(|doing| {
        doing.clear();
        let _ = std::fmt::Write::write_fmt(doing, what);
    });
}

/// Panics of this thread are remembered instead of printed. Also those that the engine's own lanes catch.
pub fn watch_panics() {
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let text = info.to_string().replace('\n', " ");
            PANIC.with(|panic| {
                let mut panic = panic.borrow_mut();
                // The first one tells the cause.
                if panic.is_none() {
                    *panic = Some(text);
                }
            });
        }));
    });
}

/// Runs `work`; a panic in it, caught or not, is a violation.
pub fn guarded<T>(work: impl FnOnce() -> Check<T>) -> Check<T> {
    watch_panics();
    PANIC.with(|panic| panic.borrow_mut().take());
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let panic = PANIC.with(|panic| panic.borrow_mut().take());
    match (outcome, panic) {
        (_, Some(text)) => Err(Violation(format!("{text} (while doing: {})", DOING.with_borrow(String::clone)))),
        (Ok(outcome), None) => outcome,
        (Err(_), None) => Err(Violation("a panic without a message".to_owned())),
    }
}

impl Pool {
    /// A pool for a tier.
    pub fn new(tier: &str, jobs: usize, limit: Option<Duration>) -> Pool {
        let start = Instant::now();
        Pool {
            tier: tier.to_owned(),
            jobs: jobs.max(1),
            deadline: limit.map(|limit| start + limit),
            start,
            counts: Mutex::default(),
            counters: Arc::default(),
            failures: Mutex::default(),
            most_failures: 5,
            stop: AtomicBool::new(false),
            quiet: false,
            patience: HANG,
        }
    }

    /// How long a task may take.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Pool {
        self.patience = patience;
        self
    }

    /// Stop at the first failure and print nothing.
    #[must_use]
    pub fn hunting(mut self) -> Pool {
        self.most_failures = 1;
        self.quiet = true;
        self
    }

    /// Where rare states are counted.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Adds to a count.
    pub fn count(&self, name: &str, times: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name.to_owned()).or_default() += times;
    }

    /// A count so far.
    pub fn counted(&self, name: &str) -> u64 {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or(0)
    }

    /// Whether there is no time left, or enough has failed.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Notes a failure.
    pub fn fail(&self, what: &str, replay: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < self.most_failures {
            if !self.quiet {
                println!("VIOLATION in {}: {what}\n  replay: siltstone-sim {replay}", self.tier);
            }
            failures.push(Failure { what: what.to_owned(), replay: replay.to_owned() });
        }
        if failures.len() >= self.most_failures {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Runs `work` for the numbers `0..tasks`, several at a time. `replay` gives the arguments that repeat a number's work.
    pub fn run(&self, tasks: u64, replay: impl Fn(u64) -> String + Sync, work: impl Fn(u64) -> Check + Sync) {
        let next = AtomicU64::new(0);
        let finished = AtomicU64::new(0);
        let running: Vec<Mutex<Option<(u64, Instant)>>> = (0..self.jobs).map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for place in &running {
                let (next, finished, replay, work) = (&next, &finished, &replay, &work);
                scope.spawn(move || {
                    loop {
                        let task = next.fetch_add(1, Ordering::Relaxed);
                        if task >= tasks || self.is_over() {
                            break;
                        }
                        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some((task, Instant::now()));
                        if let Err(violation) = guarded(|| work(task)) {
                            self.fail(&violation.0, &replay(task));
                        }
                        *place.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        finished.fetch_add(1, Ordering::Relaxed);
                    }
                    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some((u64::MAX, Instant::now()));
                });
            }
            self.watch(&running, &finished, tasks, &replay);
        });
    }

    /// Prints progress, and ends the process with a message if a world hangs: a thread cannot be ended from outside.
    fn watch(
        &self,
        running: &[Mutex<Option<(u64, Instant)>>],
        finished: &AtomicU64,
        tasks: u64,
        replay: &(impl Fn(u64) -> String + Sync),
    ) {
        let mut told = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
            let mut done = 0;
            for place in running {
                match *place.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some((u64::MAX, _)) => done += 1,
                    Some((task, since)) if since.elapsed() > self.patience => {
                        println!(
                            "VIOLATION in {}: hangs for {} s\n  replay: siltstone-sim {}",
                            self.tier,
                            self.patience.as_secs(),
                            replay(task)
                        );
                        std::process::exit(3);
                    }
                    _ => {}
                }
            }
            if done == running.len() {
                return;
            }
            if told.elapsed() > Duration::from_secs(10) && !self.quiet {
                told = Instant::now();
                let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
                println!(
                    "  {}: {:.0} s, {} of {tasks}, {counts:?}",
                    self.tier,
                    self.start.elapsed().as_secs_f64(),
                    finished.load(Ordering::Relaxed)
                );
            }
        }
    }

    /// What was done.
    pub fn finish(self) -> Report {
        let report = Report {
            tier: self.tier,
            counts: self.counts.into_inner().unwrap_or_else(PoisonError::into_inner),
            counters: self.counters,
            failures: self.failures.into_inner().unwrap_or_else(PoisonError::into_inner),
            seconds: self.start.elapsed().as_secs_f64(),
        };
        if !self.quiet {
            println!(
                "{}: {:.1} s, {:?}, {} violations",
                report.tier,
                report.seconds,
                report.counts,
                report.failures.len()
            );
        }
        report
    }
}
