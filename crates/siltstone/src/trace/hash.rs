//! Hashes instead of keys, so that a trace can be given away.

use std::hash::Hasher;

use bytes::Bytes;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::num::to_usize;

/// Hashes keys with a secret (SipHash-2-4, 128 bits; Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012).
///
/// **Kept**: which keys are equal, the length of each, and its first `keep_prefix` bytes as they are, so the order of keys with different
/// ones. **Lost**: all else of the key, so the order of keys within a prefix: the bounds of a range still say where it began, but what lies
/// between them is another matter. Hashes of fewer than eight bytes may collide: a few short keys may become one.
///
/// The secret is not in the trace. The same secret gives the same hashes in another trace; without it a hash can only be guessed at by who
/// knows the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyHash {
    /// 128 bits that nobody should know: from the operating system's random source.
    pub secret: [u8; 16],
    /// So many bytes from the front of each key stay as they are.
    pub keep_prefix: u32,
}

impl KeyHash {
    /// What stands in the trace for `key`.
    pub fn hash(&self, key: &[u8]) -> Bytes {
        let kept = key.len().min(to_usize(u64::from(self.keep_prefix)));
        let mut hashed = key[..kept].to_vec();
        let mut part = 0u64;
        while hashed.len() < key.len() {
            let mut hasher = SipHasher24::new_with_key(&self.secret);
            hasher.write(&part.to_le_bytes());
            hasher.write(key);
            let bytes = hasher.finish128().as_bytes();
            let missing = key.len() - hashed.len();
            hashed.extend_from_slice(&bytes[..missing.min(bytes.len())]);
            part += 1;
        }
        hashed.into()
    }
}

impl std::fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyHash").field("keep_prefix", &self.keep_prefix).finish_non_exhaustive()
    }
}
