use super::survey::survey;
use super::*;
use crate::strategy::choose;
use crate::workload::Workload;

struct Silent;

impl Observer for Silent {
    fn step(&mut self, _: Step<'_>) -> bool {
        true
    }
}

fn generated(records: u64) -> Generated {
    Generated(Workload { seed: 5, records, key_bytes: 16, value_bytes: 100, phases: Vec::new() })
}

#[test]
fn the_survey_counts_everything_and_its_sample_stays_in_budget() {
    let input = survey(&generated(1000), 1, &mut Silent).unwrap();
    assert_eq!((input.survey.records, input.survey.key_bytes, input.survey.value_bytes), (1000, 16_000, 100_000));
    assert_eq!(input.survey.sampled_keys, 1000, "a small input is kept whole");
    assert!((0.4..0.6).contains(&input.survey.ascending_share), "the built-in input is shuffled");

    // 24 bytes a key: over the budget, so the sample is halved once or more, and stays a fair one.
    let large = Generated(Workload { value_bytes: 1, ..generated(1_500_000).0 });
    let input = survey(&large, 1, &mut Silent).unwrap();
    assert!((500_000..1_100_000).contains(&input.survey.sampled_keys), "{}", input.survey.sampled_keys);
}

#[test]
fn sizes_follow_the_input_unless_they_are_set() {
    let scale = Scale::new(&Options::default(), Fixed::default(), 160 << 20);
    assert_eq!((scale.memtable_bytes, scale.file_bytes, scale.expected_flushes), (1 << 20, 1 << 20, 160));
    let tiny = Scale::new(&Options::default(), Fixed::default(), 1000);
    assert_eq!(tiny.memtable_bytes, 64 << 10);
    let mut options = Options::default();
    options.keyspace.memtable_bytes = 3 << 20;
    let fixed = Scale::new(&options, Fixed { memtable: true, ..Fixed::default() }, 160 << 20);
    assert_eq!((fixed.memtable_bytes, fixed.file_bytes), (3 << 20, 3 << 20), "a file is as large as a memtable");
}

#[test]
fn two_strategies_see_the_same_operations_and_end_with_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        strategies: vec![choose("leveling").unwrap(), choose("tiering").unwrap()],
        options: Options::default(),
        fixed: Fixed::default(),
        reads: None,
        update_share: 0.5,
        delete_share: 0.05,
        dir: dir.path().to_owned(),
        seed: 1,
    };
    let comparison = compare(&generated(5000), &plan, &mut Silent).unwrap();
    let [a, b] = &comparison.rows[..] else { panic!("two rows") };
    assert_eq!((a.live_records, a.fingerprint), (b.live_records, b.fingerprint));
    assert_eq!(a.live_records, 5000 - 250);
    assert!(a.write_amplification >= 1.0, "every record was flushed: {}", a.write_amplification);
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the stores are gone");
}

/// Lookups of existing keys asked for deleted ones as well, and more deletes were told than were made.
#[test]
fn what_is_told_is_what_ran() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = Plan {
        strategies: vec![choose("tiering").unwrap()],
        options: Options::default(),
        fixed: Fixed::default(),
        reads: Some(1000),
        update_share: 0.0,
        delete_share: 0.5,
        dir: dir.path().to_owned(),
        seed: 1,
    };
    let comparison = compare(&generated(2001), &plan, &mut Silent).unwrap();
    let row = &comparison.rows[0];
    assert_eq!((comparison.deletes, row.live_records), (1000, 1001));
    assert_eq!((comparison.reads, row.reads_found), (1000, 1000));
    // One record: a half is none, and it is there to be read.
    assert_eq!(compare(&generated(1), &plan, &mut Silent).unwrap().rows[0].reads_found, 1000);
    plan.delete_share = 0.6;
    assert!(compare(&generated(2000), &plan, &mut Silent).unwrap_err().to_string().contains("from 0 to 0.5"));
}

/// A store that loses a record must end the comparison, not win it.
#[test]
fn different_records_are_an_error() {
    let row = |fingerprint| Row { fingerprint, ..Row::default() };
    let chosen = ["leveling", "rocksdb-fifo", "tiering"].map(|name| choose(name).unwrap());
    let (fifo, [leveling, _, tiering]) = (&chosen[..2], &chosen);
    assert!(check_same(&[row(1), row(2)], fifo).is_ok(), "what drops data is not asked for it");
    let both = [leveling.clone(), tiering.clone()];
    assert!(check_same(&[row(1), row(1)], &both).is_ok());
    assert_eq!(check_same(&[row(1), row(2)], &both).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(check_same(&[row(1), row(9), row(2)], &chosen).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_cancelled_comparison_leaves_nothing_behind() {
    struct Stop(u64);
    impl Observer for Stop {
        fn step(&mut self, step: Step<'_>) -> bool {
            self.0 += u64::from(step.phase == "update");
            self.0 < 1
        }
    }
    struct StopAt(&'static str);
    impl Observer for StopAt {
        fn step(&mut self, step: Step<'_>) -> bool {
            step.strategy != self.0
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        strategies: vec![choose("leveling").unwrap()],
        options: Options::default(),
        fixed: Fixed::default(),
        reads: None,
        update_share: 1.0,
        delete_share: 0.0,
        dir: dir.path().to_owned(),
        seed: 1,
    };
    let error = compare(&generated(5000), &plan, &mut Stop(0)).unwrap_err();
    assert_eq!(error.downcast_ref::<Error>().map(Error::kind), Some(ErrorKind::Cancelled));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    // What was finished by then stays.
    let strategies = ["leveling", "tiering", "leveldb"].map(|name| choose(name).unwrap()).to_vec();
    let comparison = compare(&generated(5000), &Plan { strategies, ..plan }, &mut StopAt("tiering")).unwrap();
    assert_eq!(comparison.rows.iter().map(|row| &row.strategy[..]).collect::<Vec<_>>(), ["leveling"]);
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

/// All copies of a key leave the sample together; with one key it came out empty, and to draw from it panicked.
#[test]
fn a_key_that_comes_too_often_for_the_sample_stays_in_it() {
    struct Same(Vec<u8>);
    struct Left<'a>(&'a [u8], u64);
    impl Source for Same {
        fn describe(&self) -> String {
            "the same".to_owned()
        }
        fn records(&self) -> Option<u64> {
            None
        }
        fn open(&self) -> anyhow::Result<Box<dyn Records + '_>> {
            Ok(Box::new(Left(&self.0, 30_000)))
        }
    }
    impl Records for Left<'_> {
        fn next(&mut self) -> anyhow::Result<Option<Record<'_>>> {
            self.1 = self.1.saturating_sub(1);
            Ok((self.1 > 0).then_some((self.0, b"v")))
        }
    }
    let input = survey(&Same(vec![b'k'; 1000]), 1, &mut Silent).unwrap();
    assert_eq!((input.survey.sampled_keys, input.keys.get(0).len()), (1, 1000));
}
