//! What the papers say that a tree costs, in pages read and bytes written, measured.

#![allow(clippy::disallowed_methods, reason = "a store on a real folder")]

use siltstone::compaction::layout::Layout;
use siltstone::compaction::{Sizes, Strategy};
use siltstone::io::Rng;
use siltstone::{Db, KeyspaceOptions, Options};

use super::proofs::{named, trace};
use super::sim::Sim;

/// FD-tree (Li et al. 2010): a point lookup reads at most one page in each level, without any filter. Its fences lead there; here every
/// table's index does, which is in memory.
#[test]
fn an_fd_tree_lookup_reads_a_page_a_level() {
    let folder = tempfile::tempdir().unwrap();
    let keyspace = KeyspaceOptions {
        memtable_bytes: 8 << 10,
        file_bytes: 8 << 10,
        block_bytes: 512,
        size_ratio: 4,
        filter_bits_per_key: 0.0,
        strategy: "fd-tree".to_owned(),
        ..KeyspaceOptions::default()
    };
    let db = Db::open(folder.path(), Options { keyspace, ..Options::default() }).unwrap();
    let store = db.default_keyspace();
    let mut rng = Rng::new(5);
    // A level that has gone down as a whole is empty for a while.
    let levels = loop {
        for _ in 0..200 {
            store.put((2 * rng.below(1 << 30)).to_be_bytes(), [7; 24]).unwrap();
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let levels = store.tree().levels.iter().filter(|level| !level.runs.is_empty()).count();
        if levels >= 3 {
            break u64::try_from(levels).unwrap();
        }
    };
    let pages = || {
        let stats = db.stats();
        stats.cache_hits + stats.cache_misses
    };
    let (mut most, mut all) = (0, 0);
    for _ in 0..2000 {
        let before = pages();
        assert_eq!(store.get((2 * rng.below(1 << 30) + 1).to_be_bytes()).unwrap(), None);
        let read = pages() - before;
        assert!(read <= levels, "{read} pages in {levels} levels");
        (most, all) = (read.max(most), all + read);
    }
    // No filter: nearly every level is asked.
    assert!(most == levels && 10 * all > 9 * 2000 * (levels - 1), "{levels} {most} {all}");
}

/// Fluid trees (Dostoevsky) at their ends. A level here is due when it holds as many runs as its limit, so it keeps one fewer: K = T - 1 is the limit T.
#[test]
fn a_fluid_tree_is_leveling_at_one_end_and_tiering_at_the_other() {
    let fluid = |runs: u32| Strategy { layout: Layout::Hybrid { runs: vec![runs] }, ..named("dostoevsky") };
    let leveling = Strategy { reuse: fluid(1).reuse, ..named("full") };
    assert!(trace(fluid(1), 5) == trace(leveling, 5), "K = Z = 1");
    assert!(trace(fluid(4), 5) == trace(named("tiering"), 5), "K = Z = T - 1");
    assert!(trace(fluid(3), 5) != trace(named("tiering"), 5));
}

/// Lazy leveling (Dostoevsky): what an entry costs while the last of L levels fills up. The paper has (L - 1)(T - 1)/T + (T - 1)/2. It never writes the
/// run that makes a level due to that level, and counts the last level from empty to nearly full; here every run is written where it arrives, and
/// the last level begins with the run that moved down and is full at the end: (L - 1) + (T + 2)/2. The difference is (L - 1)/T + 3/2, whatever
/// the data.
#[test]
fn lazy_leveling_costs_what_dostoevsky_says() {
    for (ratio, levels) in [(4u32, 4u32), (6, 3)] {
        let sizes = Sizes { memtable_bytes: 200, file_bytes: 1000, size_ratio: ratio, level1_bytes: 0 };
        let mut sim = Sim::named("dostoevsky", sizes);
        let mut rng = Rng::new(9);
        // Flushes until the last level goes down as a whole and becomes level `depth`.
        let mut fill = |sim: &mut Sim, depth: u32| {
            while u32::from(sim.view().last_level().0) < depth {
                let keys: Vec<u32> = (0..20).map(|_| u32::try_from(rng.below(1 << 31)).unwrap()).collect();
                sim.flush(&keys, &[]);
                sim.settle();
            }
        };
        fill(&mut sim, levels - 1);
        let (flushed, written) = (sim.flushed_bytes, sim.written_bytes);
        fill(&mut sim, levels);
        let (flushed, written) = ((sim.flushed_bytes - flushed) as f64, (sim.written_bytes - written) as f64);
        let measured = (flushed + written) / flushed;
        let (t, l) = (f64::from(ratio), f64::from(levels));
        let ours = (l - 1.0) + (t + 2.0) / 2.0;
        let paper = (l - 1.0) * (t - 1.0) / t + (t - 1.0) / 2.0;
        let what = format!("T = {t}, L = {l}: {measured:.2}, expected {ours:.2}, Dostoevsky's {paper:.2}");
        assert!((measured / ours - 1.0).abs() < 0.15, "{what}");
        assert!(((measured - (l - 1.0) / t - 1.5) / paper - 1.0).abs() < 0.15, "{what}");
    }
}
