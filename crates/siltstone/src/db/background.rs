//! The only owner of threads: one thread for each lane of the core.
//!
//! A lane's thread calls its step until that is idle, then sleeps until it is woken. Threads that merge run at low priority
//! (`nice`), so that on a machine with few cores the foreground goes first. All waiting is on condition variables. A step that panics ends its
//! thread; before that the store has told those who wait (`Core::guard`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, ErrorKind, Result};
use crate::io::{Executor, Lane, LaneId, LaneStep, Workers};

/// Runs each lane on a thread of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

struct Shared {
    lanes: Vec<Bell>,
    /// Counts `notify` calls; waiters sleep on the condition.
    changes: Mutex<u64>,
    changed: Condvar,
    stopping: AtomicBool,
}

/// What wakes one lane.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    condition: Condvar,
}

struct Running {
    shared: Arc<Shared>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Executor for Threads {
    fn start(&self, lanes: Vec<Lane>) -> Result<Box<dyn Workers>> {
        let shared = Arc::new(Shared {
            lanes: lanes.iter().map(|_| Bell::default()).collect(),
            changes: Mutex::new(0),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let running = Running { shared: Arc::clone(&shared), threads: Mutex::new(Vec::new()) };
        for (index, lane) in lanes.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let name = format!("siltstone-{}", lane.name);
            let thread = std::thread::Builder::new().name(name).spawn(move || run(&lane, index, &shared));
            match thread {
                Ok(thread) => running.threads.lock().push(thread),
                Err(e) => {
                    running.stop();
                    return Err(Error::new(ErrorKind::Io, format!("cannot start a background thread: {e}")));
                }
            }
        }
        Ok(Box::new(running))
    }
}

fn run(lane: &Lane, index: usize, shared: &Shared) {
    if lane.nice > 0 {
        // On Linux niceness belongs to a thread. Where it cannot be set the thread just runs at normal priority.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), lane.nice);
    }
    let bell = &shared.lanes[index];
    while !shared.stopping.load(Ordering::Acquire) {
        let timeout = match (lane.step)() {
            LaneStep::Worked => continue,
            LaneStep::Idle => None,
            LaneStep::IdleFor(time) => Some(time),
        };
        let mut rung = bell.rung.lock();
        // `stop` rings under this lock, so it cannot slip in between the check and the wait.
        while !*rung && !shared.stopping.load(Ordering::Acquire) {
            match timeout {
                None => bell.condition.wait(&mut rung),
                Some(time) => {
                    if bell.condition.wait_for(&mut rung, time).timed_out() {
                        break;
                    }
                }
            }
        }
        *rung = false;
    }
}

impl Workers for Running {
    fn wake(&self, lane: LaneId) {
        let bell = &self.shared.lanes[lane.0];
        let mut rung = bell.rung.lock();
        if !*rung {
            *rung = true;
            bell.condition.notify_one();
        }
    }

    fn notify(&self) {
        *self.shared.changes.lock() += 1;
        self.shared.changed.notify_all();
    }

    fn wait(&self, done: &mut dyn FnMut() -> bool) -> Result<()> {
        loop {
            let seen = *self.shared.changes.lock();
            // Asked outside the lock: it may take locks of its own.
            if done() {
                return Ok(());
            }
            let mut changes = self.shared.changes.lock();
            while *changes == seen {
                self.shared.changed.wait(&mut changes);
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this file is the owner of threads")]
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        for bell in &self.shared.lanes {
            *bell.rung.lock() = true;
            bell.condition.notify_one();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        #[expect(clippy::disallowed_methods, reason = "this file is the owner of threads")]
        let own = std::thread::current().id();
        // A listener may close the store: the lane that called it ends when its step is over, and cannot wait for itself.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // Of a panic the store knows already.
            let _ = thread.join();
        }
        self.notify();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
