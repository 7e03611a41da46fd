//! Ctrl-C, SIGTERM and SIGHUP: the first one asks, a later one kills.
//!
//! Long work looks at the flag every thousand records or so and ends as if its input had ended. A killed process loses nothing
//! acknowledged either, but leaves temporary files behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use siltstone::Cancel;

use crate::failure::Interrupted;

/// One wish may come as several signals: `timeout` sends its own to the process and to its group, a closed terminal likewise.
const ONE_WISH: Duration = Duration::from_millis(500);

/// Whether the work shall end. Clones share the answer.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    cancels: Arc<Mutex<Vec<Cancel>>>,
}

impl Interrupt {
    /// Takes the signals over from the system. Where that fails, they kill, which a store survives as well.
    pub(crate) fn install() -> Interrupt {
        let interrupt = Interrupt::default();
        let shared = interrupt.clone();
        // Under `nohup` the work shall outlive its terminal.
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP));
        if let Ok(mut signals) = Signals::new(wanted) {
            std::thread::spawn(move || shared.listen(&mut signals));
        }
        interrupt
    }

    fn listen(&self, signals: &mut Signals) {
        let mut first = None;
        for _ in signals.forever() {
            let asked_at = *first.get_or_insert_with(Instant::now);
            if asked_at.elapsed() > ONE_WISH {
                std::process::exit(130);
            }
            self.asked.store(true, Ordering::SeqCst);
            self.cancels.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Cancel::cancel);
        }
    }

    /// Whether it shall.
    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// A token that is cancelled then.
    pub(crate) fn cancel(&self) -> Cancel {
        let cancel = Cancel::new();
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).push(cancel.clone());
        if self.is_set() {
            cancel.cancel();
        }
        cancel
    }

    /// An error once it shall; `what` says what the work leaves behind.
    pub(crate) fn check(&self, what: impl FnOnce() -> String) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted(what())) } else { Ok(()) }
    }
}

/// Whether this process was started with `signal` ignored; where the system does not tell, it was not.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
