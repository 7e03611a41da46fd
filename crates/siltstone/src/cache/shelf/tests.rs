use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn items(n: usize, seed: u64) -> Vec<u64> {
    (0..n).map(|i| seed << 32 | to_u64(i)).collect()
}

/// Pieces of all sizes, made and dropped in any order, keep what they hold, begin at lines and do not overlap.
#[test]
fn pieces_keep_what_they_hold() {
    let shelf = Shelf::default();
    let mut rng = crate::io::Rng::new(7);
    let mut kept: Vec<(u64, usize, Kept<u64>)> = Vec::new();
    for seed in 0..400 {
        let n = to_usize(rng.below(if seed % 40 == 0 { 300_000 } else { 40_000 }));
        let piece = Kept::new(items(n, seed), Some(&shelf));
        assert_eq!(piece.pages.is_some(), 8 * n >= LEAST_BYTES);
        assert!(piece.pages.is_none() || piece.as_ptr().addr() % LINE_BYTES == 0);
        kept.push((seed, n, piece));
        if kept.len() > 20 {
            let (seed, n, piece) = kept.swap_remove(to_usize(rng.below(21)));
            assert!(*piece == items(n, seed)[..], "piece {seed} of {n}");
        }
    }
    for (seed, n, piece) in kept {
        assert!(*piece == items(n, seed)[..], "piece {seed} of {n}");
    }
}

/// A huge page that is full goes with its last piece; the open one stays.
#[test]
fn a_page_goes_with_its_last_piece() {
    let shelf = Shelf::default();
    let pieces: Vec<Kept<u64>> = (0..5).map(|seed| Kept::new(items(100_000, seed), Some(&shelf))).collect();
    let pages: Vec<_> = pieces.iter().map(|piece| Arc::downgrade(piece.pages.as_ref().unwrap())).collect();
    // Two of 800 KB in each page of 2 MiB.
    let same = |a: usize, b: usize| pages[a].ptr_eq(&pages[b]);
    assert_eq!([same(0, 1), same(1, 2), same(2, 3), same(3, 4)], [true, false, true, false]);
    drop(pieces);
    let alive: Vec<bool> = pages.iter().map(|page| page.upgrade().is_some()).collect();
    assert_eq!(alive, [false, false, false, false, true]);
}

#[test]
fn without_a_shelf_they_are_on_the_heap() {
    let heap = Kept::new(items(50_000, 1), None);
    assert!(heap.pages.is_none() && *heap == items(50_000, 1)[..]);
    let shelf = Shelf::default();
    let slots = Kept::new((0..50_000).map(AtomicU32::new).collect(), Some(&shelf));
    slots[49_999].store(1, Ordering::Relaxed);
    assert_eq!((slots[49_998].load(Ordering::Relaxed), slots[49_999].load(Ordering::Relaxed)), (49_998, 1));
}
