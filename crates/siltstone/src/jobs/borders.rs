//! Keys at which output files end whatever their size: the borders of shards.

use bytes::Bytes;

/// The borders that are still ahead of a merge.
#[derive(Debug)]
pub(crate) struct Borders {
    /// The last comes next.
    ahead: Vec<Bytes>,
}

impl Borders {
    /// The first border behind `key`. Those at or before it may not have been crossed yet.
    pub(crate) fn next_after(&self, key: &[u8]) -> Option<&[u8]> {
        self.ahead.iter().rev().map(|border| &border[..]).find(|border| *border > key)
    }

    /// The keys `borders`, ascending.
    pub(crate) fn new(borders: &[Bytes]) -> Borders {
        Borders { ahead: borders.iter().rev().cloned().collect() }
    }

    /// Whether a border lies between the key asked before and `key`, `key` included. Versions of one key are never parted: the first of
    /// them crosses.
    #[inline]
    pub(crate) fn crossed(&mut self, key: &[u8]) -> bool {
        let mut crossed = false;
        while self.ahead.last().is_some_and(|border| border[..] <= *key) {
            self.ahead.pop();
            crossed = true;
        }
        crossed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_is_crossed_once_by_the_first_key_behind_it() {
        let borders: Vec<Bytes> = ["d", "h", "i"].map(|key| Bytes::from_static(key.as_bytes())).to_vec();
        let mut borders = Borders::new(&borders);
        let crossed = ["a", "c", "d", "d", "e", "k", "z"].map(|key| borders.crossed(key.as_bytes()));
        assert_eq!(crossed, [false, false, true, false, false, true, false]);
    }
}
