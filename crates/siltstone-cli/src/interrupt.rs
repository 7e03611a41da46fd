//! Ctrl-C: the first one asks, the second one kills.
//!
//! Long work looks at the flag every thousand records or so and ends as if its input had ended. A killed process loses nothing
//! acknowledged either, but leaves temporary files behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use siltstone::Cancel;

use crate::failure::Interrupted;

/// Whether Ctrl-C was pressed. Clones share the answer.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
    cancels: Arc<Mutex<Vec<Cancel>>>,
}

impl Interrupt {
    /// Takes Ctrl-C over from the system. Where that fails, Ctrl-C kills, which a store survives as well.
    pub(crate) fn install() -> Interrupt {
        let interrupt = Interrupt::default();
        let shared = interrupt.clone();
        let _ = ctrlc::set_handler(move || {
            if shared.pressed.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            shared.cancels.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Cancel::cancel);
        });
        interrupt
    }

    /// Whether it was pressed.
    pub(crate) fn is_set(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }

    /// A token that is cancelled by Ctrl-C.
    pub(crate) fn cancel(&self) -> Cancel {
        let cancel = Cancel::new();
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner).push(cancel.clone());
        if self.is_set() {
            cancel.cancel();
        }
        cancel
    }

    /// An error once it was pressed; `what` says what the work leaves behind.
    pub(crate) fn check(&self, what: impl FnOnce() -> String) -> Result<(), Interrupted> {
        if self.is_set() { Err(Interrupted(what())) } else { Ok(()) }
    }
}
