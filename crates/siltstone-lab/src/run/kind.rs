//! Kinds of operations by number.

use crate::workload::OpKind;

/// How many kinds there are.
pub(super) const KINDS: usize = OpKind::ALL.len();

/// The place of a kind in [`OpKind::ALL`].
#[inline]
pub(super) const fn index_of(kind: OpKind) -> usize {
    kind as usize
}

#[cfg(test)]
#[test]
fn kinds_are_numbered_as_they_are_listed() {
    assert!(OpKind::ALL.into_iter().enumerate().all(|(at, kind)| index_of(kind) == at));
}
