//! Figures over time in bounded memory: when there are too many windows, two neighbours become one.

use crate::num::index;

/// The most windows of a phase.
const MAX_WINDOWS: u64 = 240;

/// What a window holds.
pub(super) trait Cell: Default {
    /// Takes in what the next window holds.
    fn absorb(&mut self, later: Self);
}

/// Windows of equal length, the first begins at 0.
#[derive(Debug)]
pub(super) struct Series<T> {
    length_ns: u64,
    cells: Vec<T>,
}

impl<T: Cell> Series<T> {
    /// Windows of `length_ns` at first.
    pub(super) fn new(length_ns: u64) -> Series<T> {
        assert!(length_ns > 0, "a window of no time");
        Series { length_ns, cells: Vec::new() }
    }

    /// The window in which `at_ns` lies.
    #[inline]
    pub(super) fn at(&mut self, at_ns: u64) -> &mut T {
        while at_ns / self.length_ns >= MAX_WINDOWS {
            self.double();
        }
        let at = index(at_ns / self.length_ns);
        if at >= self.cells.len() {
            self.cells.resize_with(at + 1, T::default);
        }
        &mut self.cells[at]
    }

    /// How long a window is by now.
    pub(super) fn length_ns(&self) -> u64 {
        self.length_ns
    }

    /// Makes windows of `length_ns`, which is theirs times a power of two.
    pub(super) fn coarsen(&mut self, length_ns: u64) {
        while self.length_ns < length_ns {
            self.double();
        }
    }

    /// The windows.
    pub(super) fn into_cells(self) -> Vec<T> {
        self.cells
    }

    fn double(&mut self) {
        let mut cells = std::mem::take(&mut self.cells).into_iter();
        while let Some(mut first) = cells.next() {
            if let Some(second) = cells.next() {
                first.absorb(second);
            }
            self.cells.push(first);
        }
        self.length_ns *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Cell for u64 {
        fn absorb(&mut self, later: u64) {
            *self += later;
        }
    }

    #[test]
    fn nothing_is_lost_when_windows_become_longer() {
        let mut series: Series<u64> = Series::new(10);
        (0..100_000).for_each(|at| *series.at(at) += 1);
        assert_eq!(series.length_ns(), 640);
        let cells = series.into_cells();
        assert!(crate::num::count(cells.len()) <= MAX_WINDOWS);
        assert_eq!(cells.iter().sum::<u64>(), 100_000);
        assert!(cells[..cells.len() - 1].iter().all(|cell| *cell == 640));
    }
}
