//! Several keyspaces share one lane of merges: who is served first, and that all are in the end.

use siltstone::{Event, Keyspace, KeyspaceOptions, Options};

use crate::explain::{Machine, options};

/// Lets forty runs gather.
const PATIENT: &str = r#"
name = "patient"
layout = { kind = "runs", grouping = { kind = "time-order" }, expected_runs = 40 }
[[rule]]
trigger = { kind = "sorted-runs", runs = 40 }
granularity = { kind = "sorted-runs" }
"#;

fn gather(keyspace: &Keyspace, runs: u32) {
    for run in 0..runs {
        for n in 0..20 {
            keyspace.put(format!("key-{n:02}"), format!("{run:040}")).unwrap();
        }
        keyspace.flush().unwrap();
    }
}

#[test]
fn the_keyspace_whose_writers_are_about_to_stop_is_merged_first() {
    let machine = Machine::new();
    let patient = KeyspaceOptions { strategy: PATIENT.to_owned(), ..options().keyspace };
    let db = machine.open(&Options { keyspace: patient.clone(), ..options() });
    let pressed = db.default_keyspace();
    let calm: Vec<_> = ["a", "b", "c"].map(|name| db.create_keyspace(name, patient.clone()).unwrap()).to_vec();
    gather(&pressed, 11);
    calm.iter().for_each(|keyspace| gather(keyspace, 5));
    assert!(machine.heard.0.lock().iter().all(|event| !matches!(event, Event::CompactionStart { .. })));

    // Now merges are due everywhere: three runs of a level are, six are expected, at twelve writers stop. The other keyspaces are
    // told first, and come first by number after the last that was served.
    calm.iter().chain([&pressed]).for_each(|keyspace| keyspace.set_strategy("tiering").unwrap());
    db.wait_idle().unwrap();
    let heard = machine.heard.0.lock();
    let begun = heard.iter().filter_map(|event| match event {
        Event::CompactionStart { keyspace, .. } => Some(*keyspace),
        _ => None,
    });
    let begun: Vec<_> = begun.collect();
    assert_eq!(begun.first(), Some(&pressed.id()), "{begun:?}");
    for keyspace in &calm {
        assert!(begun.contains(&keyspace.id()), "{} is never served: {begun:?}", keyspace.name());
        assert!(keyspace.stats().runs < 5);
    }
}
