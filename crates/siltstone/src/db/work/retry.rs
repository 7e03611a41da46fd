//! What failed is tried again, later and later.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::version::KeyspaceId;

/// Puts off what failed: exponentially, so that a full disk or a damaged file does not become a busy loop.
#[derive(Default)]
pub(super) struct Retry {
    failures: u32,
    not_before_ns: u64,
}

impl Retry {
    pub(super) fn failed(&mut self, now_ns: u64, error: &Error) {
        // A damaged input stays damaged; a full disk should be noticed soon to have room again.
        let longest_ms = if error.kind() == ErrorKind::Corruption { 30_000 } else { 500 };
        let wait_ms = (10u64 << self.failures.min(12)).min(longest_ms);
        self.failures += 1;
        self.not_before_ns = now_ns + wait_ms * 1_000_000;
    }

    pub(super) fn wait(&self, now_ns: u64) -> Option<Duration> {
        (now_ns < self.not_before_ns).then(|| Duration::from_nanos(self.not_before_ns - now_ns))
    }
}

/// The same for the merges of each keyspace: a damaged file of one does not put off what others need.
#[derive(Default)]
pub(super) struct Retries(BTreeMap<KeyspaceId, Retry>);

impl Retries {
    pub(super) fn failed(&mut self, keyspace: KeyspaceId, now_ns: u64, error: &Error) {
        self.0.entry(keyspace).or_default().failed(now_ns, error);
    }

    /// A merge of `keyspace` has ended well.
    pub(super) fn forget(&mut self, keyspace: KeyspaceId) {
        self.0.remove(&keyspace);
    }

    /// How long until the first keyspace of those that are put off may be asked again.
    pub(super) fn wait(&self, now_ns: u64) -> Option<Duration> {
        self.0.values().filter_map(|retry| retry.wait(now_ns)).min()
    }

    /// Whether a keyspace that was put off may be asked again, and was not yet.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.0.values().any(|retry| retry.not_before_ns > 0 && retry.wait(now_ns).is_none())
    }

    /// The keyspaces that are not to be asked now. All others are taken for asked; those that do not exist any more are forgotten.
    pub(super) fn put_off(&mut self, now_ns: u64, exists: impl Fn(KeyspaceId) -> bool) -> Vec<KeyspaceId> {
        self.0.retain(|keyspace, _| exists(*keyspace));
        let mut put_off = Vec::new();
        for (keyspace, retry) in &mut self.0 {
            match retry.wait(now_ns) {
                Some(_) => put_off.push(*keyspace),
                None => retry.not_before_ns = 0,
            }
        }
        put_off
    }
}
