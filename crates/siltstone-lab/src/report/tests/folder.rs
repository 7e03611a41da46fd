use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::run_page;
use super::data_of;

#[expect(dead_code, clippy::cast_precision_loss, reason = "an example, of which only the writer is used")]
#[path = "../../../examples/synthetic_results.rs"]
mod synthetic;

/// The files of a packed tree after its last change, as `tree.jsonl` has them, without keys.
fn unpacked(tree: &Value) -> BTreeMap<u64, Value> {
    let column = |name: &str| tree["files"][name].as_array().unwrap().iter().map(|n| n.as_i64().unwrap());
    let running = |name: &str| {
        column(name)
            .scan(0, |at, difference| {
                *at += difference;
                Some(*at)
            })
            .collect::<Vec<i64>>()
    };
    let (id, run) = (running("id"), running("run"));
    let [level, bytes, entries, tombstones, lived] =
        ["level", "bytes", "entries", "tombstones", "lived"].map(|name| column(name).collect::<Vec<_>>());
    (0..id.len())
        .filter(|&i| lived[i] == 0)
        .map(|i| {
            let file = json!({ "id": id[i], "level": level[i], "run": run[i], "bytes": bytes[i], "entries": entries[i], "tombstones": tombstones[i] });
            (id[i].unsigned_abs(), file)
        })
        .collect()
}

/// The same from the lines.
fn replayed(lines: &str) -> BTreeMap<u64, Value> {
    let mut files = BTreeMap::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        line["removed"].as_array().unwrap().iter().for_each(|id| {
            files.remove(&id.as_u64().unwrap());
        });
        for file in line["added"].as_array().unwrap() {
            let mut file = file.clone();
            file.as_object_mut().unwrap().retain(|name, _| name != "smallest" && name != "largest");
            files.insert(file["id"].as_u64().unwrap(), file);
        }
    }
    files
}

#[test]
fn ten_thousand_compactions_fit_in_five_million_bytes_and_no_file_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), 10_000).unwrap();
    let page = run_page(folder.path()).unwrap();
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let data = data_of(&page);
    for subject in data["subjects"].as_array().unwrap() {
        let lines = fs::read_to_string(
            folder.path().join(format!("trials/{}-1/tree.jsonl", subject["name"].as_str().unwrap())),
        )
        .unwrap();
        let tree = &subject["trees"][0];
        assert_eq!(unpacked(tree), replayed(&lines));
        assert_eq!(
            tree["by"].as_array().unwrap().iter().filter(|by| **by == 0).count(),
            0,
            "each change has its compaction or flush"
        );
        let totals = tree["compactions"]["total"].as_array().unwrap();
        assert!(totals.iter().any(|total| *total == 40), "candidates that are left out are counted");
        // Files of a run do not overlap on the page.
        let [low, width, level, lived] = ["low", "high", "level", "lived"].map(|name| {
            tree["files"][name].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect::<Vec<_>>()
        });
        let low: Vec<i64> = low
            .iter()
            .scan(0, |at, difference| {
                *at += difference;
                Some(*at)
            })
            .collect();
        let mut last: Vec<(i64, i64)> =
            (0..low.len()).filter(|&i| level[i] == 3 && lived[i] == 0).map(|i| (low[i], low[i] + width[i])).collect();
        last.sort_unstable();
        assert!(last.len() > 100 && last.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    }
}

/// Whatever a run did, its page can be sent around. With all changes this one has 7 MB.
#[test]
fn a_long_history_is_thinned_out_until_it_fits_and_the_page_says_so() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), 16_000).unwrap();
    let page = run_page(folder.path()).unwrap();
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let data = data_of(&page);
    let mut left_out = 0;
    for subject in data["subjects"].as_array().unwrap() {
        let trial = folder.path().join(format!("trials/{}-1", subject["name"].as_str().unwrap()));
        let lines = |name: &str| fs::read_to_string(trial.join(name)).unwrap();
        let tree = &subject["trees"][0];
        assert_eq!(unpacked(tree), replayed(&lines("tree.jsonl")), "the tree at the end is the whole one");
        let kept = tree["compactions"]["at"].as_array().unwrap().len();
        let by = tree["by"].as_array().unwrap();
        assert!(by.iter().all(|by| (1..=kept).contains(&usize::try_from(by.as_u64().unwrap()).unwrap())));
        assert!(kept > 1000, "{kept}");
        let all = lines("compactions.jsonl").lines().count();
        assert_eq!(tree["left_out"].as_u64().unwrap(), u64::try_from(all - kept).unwrap());
        left_out += all - kept;
    }
    let note = data["notes"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
    assert!(note.contains(&format!("{left_out} smaller ones")), "{note}");
}

#[test]
fn the_machine_of_each_trial_is_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), 20).unwrap();
    let data = data_of(&run_page(folder.path()).unwrap());
    let machines = data["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 2);
    assert_eq!((&machines[1]["trial"], &machines[1]["cores"]), (&json!("toy-lazy-1"), &json!(2)));
    // A folder from elsewhere may lack it.
    fs::remove_file(folder.path().join("trials/toy-lazy-1/machine.json")).unwrap();
    assert_eq!(data_of(&run_page(folder.path()).unwrap())["machines"].as_array().unwrap().len(), 1);
    fs::write(folder.path().join("trials/toy-lazy-1/machine.json"), "{}").unwrap();
    assert!(format!("{:#}", run_page(folder.path()).unwrap_err()).contains("machine.json"));
}

/// The page looked for folders by the strategy's own name: it lost the charts and the machine, and of a run that was stopped the whole strategy.
#[test]
fn a_strategy_whose_name_is_no_folder_name_keeps_its_trials() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), 20).unwrap();
    let [old, new] = ["toy-lazy-1", "toy_lazy_2-1"].map(|name| folder.path().join("trials").join(name));
    fs::rename(old, &new).unwrap();
    for path in [folder.path().join("run.json"), folder.path().join("rows.jsonl"), new.join("row.json")] {
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"toy-lazy\"", "\"toy lazy/2\"")).unwrap();
    }
    let of_rows = data_of(&run_page(folder.path()).unwrap());
    fs::remove_file(folder.path().join("rows.jsonl")).unwrap();
    let of_trials = data_of(&run_page(folder.path()).unwrap());
    for data in [of_rows, of_trials] {
        let subject = &data["subjects"][1];
        assert_eq!(subject["name"], "toy lazy/2");
        assert!(!subject["windows"].is_null() && !subject["trees"][0].is_null(), "{subject}");
        assert_eq!(data["machines"][1]["trial"], "toy_lazy_2-1");
    }
}

#[test]
fn what_is_wrong_is_told_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), 20).unwrap();
    let error = |folder: &Path| format!("{:#}", run_page(folder).unwrap_err());
    let tree = folder.path().join("trials/toy-lazy-1/tree.jsonl");
    let good = fs::read_to_string(&tree).unwrap();
    fs::write(&tree, good.replacen("\"removed\":[]", "\"removed\":[99]", 1)).unwrap();
    assert!(
        error(folder.path()).contains("change 1 takes out file 99, which is not there"),
        "{}",
        error(folder.path())
    );
    fs::write(&tree, format!("{good}{{\"at_s\":")).unwrap();
    let line = good.lines().count() + 1;
    assert!(error(folder.path()).contains(&format!("tree.jsonl:{line}")), "{}", error(folder.path()));
    fs::write(folder.path().join("run.json"), r#"{"format": 7, "strategies": []}"#).unwrap();
    assert!(error(folder.path()).contains("format 7; this siltstone reads format 1"));
    assert!(error(&folder.path().join("nowhere")).contains("there is no folder"));
    assert!(error(folder.path().parent().unwrap()).contains("holds no results"));
}

#[test]
fn a_run_that_was_stopped_shows_what_is_there_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), 20).unwrap();
    fs::remove_file(folder.path().join("rows.jsonl")).unwrap();
    fs::remove_dir_all(folder.path().join("trials/toy-lazy-1")).unwrap();
    let data = data_of(&run_page(folder.path()).unwrap());
    assert_eq!(data["subjects"].as_array().unwrap().len(), 1);
    assert_eq!(data["notes"][0], "The run is not finished: 1 of 2 trials are there.");
}
