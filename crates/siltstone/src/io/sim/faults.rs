//! Faults: which call fails, how, and what it does all the same.

use super::super::IoClass;

/// The calls that can fail. A store to a log segment is no call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "each is named after the call")]
pub enum CallKind {
    CreateDir,
    List,
    Exists,
    Create,
    CreateLog,
    Open,
    OpenSlots,
    Rename,
    Remove,
    RemoveDir,
    Link,
    SyncDir,
    Lock,
    FreeBytes,
    Append,
    Sync,
    Read,
    ReadSlot,
    WriteSlot,
    Cut,
}

impl CallKind {
    /// All kinds; `ALL[kind as usize] == kind`.
    pub const ALL: [CallKind; 20] = [
        CallKind::CreateDir,
        CallKind::List,
        CallKind::Exists,
        CallKind::Create,
        CallKind::CreateLog,
        CallKind::Open,
        CallKind::OpenSlots,
        CallKind::Rename,
        CallKind::Remove,
        CallKind::RemoveDir,
        CallKind::Link,
        CallKind::SyncDir,
        CallKind::Lock,
        CallKind::FreeBytes,
        CallKind::Append,
        CallKind::Sync,
        CallKind::Read,
        CallKind::ReadSlot,
        CallKind::WriteSlot,
        CallKind::Cut,
    ];
}

/// Which calls a fault counts. The default: all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Calls of this kind only.
    pub kind: Option<CallKind>,
    /// Calls made for this reason only.
    pub class: Option<IoClass>,
    /// Calls on paths that end so only (`".sst"`).
    pub suffix: Option<String>,
}

/// What the system says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// `EIO`.
    Io,
    /// `ENOSPC`.
    NoSpace,
    /// `EMFILE`.
    TooManyFiles,
    /// `EROFS`.
    ReadOnly,
}

impl Errno {
    /// The error as the operating system's.
    pub fn error(self) -> std::io::Error {
        use rustix::io::Errno as Os;
        let os = match self {
            Errno::Io => Os::IO,
            Errno::NoSpace => Os::NOSPC,
            Errno::TooManyFiles => Os::MFILE,
            Errno::ReadOnly => Os::ROFS,
        };
        os.into()
    }
}

/// What a failing call does all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Effect {
    /// Nothing. A sync that fails so marks its bytes as clean, as ext4 does: they can be read until the crash, and no later
    /// sync writes them.
    #[default]
    Nothing,
    /// An append leaves a part of its data. For other calls the same as `Nothing`.
    Partial,
    /// Everything: a sync whose bytes are durable although it failed, a rename that a network file system did and denied.
    Full,
    /// A sync that fails so throws its bytes away: reads see the old ones, as on btrfs. For other calls the same as `Nothing`.
    Revert,
}

/// A fault to come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which calls count.
    pub filter: Filter,
    /// Which of them fails, counted from when the fault is set; 1 is the next.
    pub at_call: u64,
    /// Whether all later ones fail too.
    pub sticky: bool,
    /// The error; `None` if the call only takes long.
    pub errno: Option<Errno>,
    /// What the call does all the same.
    pub effect: Effect,
    /// Virtual nanoseconds that the call hangs first.
    pub stall_ns: u64,
}

impl Fault {
    /// The `n`th call fails once with `errno` and does nothing.
    pub fn nth(n: u64, errno: Errno) -> Fault {
        Fault {
            filter: Filter::default(),
            at_call: n,
            sticky: false,
            errno: Some(errno),
            effect: Effect::Nothing,
            stall_ns: 0,
        }
    }

    /// The `n`th call hangs for `stall_ns` virtual nanoseconds, and then works.
    pub fn stall(n: u64, stall_ns: u64) -> Fault {
        Fault { errno: None, stall_ns, ..Fault::nth(n, Errno::Io) }
    }

    /// Counts calls of `kind` only.
    #[must_use]
    pub fn of(mut self, kind: CallKind) -> Fault {
        self.filter.kind = Some(kind);
        self
    }

    /// Counts calls made for `class` only.
    #[must_use]
    pub fn class(mut self, class: IoClass) -> Fault {
        self.filter.class = Some(class);
        self
    }

    /// Counts calls on paths that end in `suffix` only.
    #[must_use]
    pub fn suffix(mut self, suffix: &str) -> Fault {
        self.filter.suffix = Some(suffix.to_owned());
        self
    }

    /// All later calls fail too.
    #[must_use]
    pub fn sticky(mut self) -> Fault {
        self.sticky = true;
        self
    }

    /// What the failing call does all the same.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Fault {
        self.effect = effect;
        self
    }
}

/// What was injected into a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Injected {
    pub(super) error: Option<(Errno, Effect)>,
    pub(super) stall_ns: u64,
}

/// The faults that are set, and the counts of calls.
#[derive(Clone, Default)]
pub(super) struct Faults {
    armed: Vec<Armed>,
    pub(super) calls: u64,
    pub(super) by_kind: [u64; CallKind::ALL.len()],
    pub(super) hits: u64,
}

#[derive(Clone)]
struct Armed {
    fault: Fault,
    seen: u64,
}

impl Faults {
    pub(super) fn set(&mut self, fault: Fault) {
        self.armed.push(Armed { fault, seen: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    /// Counts a call, and says what happens to it.
    pub(super) fn call(&mut self, kind: CallKind, class: IoClass, path: &std::path::Path) -> Injected {
        self.calls += 1;
        self.by_kind[kind as usize] += 1;
        let mut injected = Injected::default();
        for Armed { fault, seen } in &mut self.armed {
            let Filter { kind: of, class: by, suffix } = &fault.filter;
            let counts = of.is_none_or(|of| of == kind)
                && by.is_none_or(|by| by == class)
                && suffix.as_ref().is_none_or(|suffix| path.to_string_lossy().ends_with(suffix.as_str()));
            if !counts {
                continue;
            }
            *seen += 1;
            if *seen == fault.at_call || (fault.sticky && *seen > fault.at_call) {
                injected.stall_ns += fault.stall_ns;
                injected.error = injected.error.or(fault.errno.map(|errno| (errno, fault.effect)));
            }
        }
        self.hits += u64::from(injected.error.is_some() || injected.stall_ns > 0);
        injected
    }
}
