//! What strategies decide, drawn as text (`testdata/compaction`), and that nobody who reads notices.
//!
//! | command | |
//! | --- | --- |
//! | `lsm` | the tree, as text; forgets running jobs and cursors; `read=id@ms,...` and `vain=id*times,...` say what was read, `paid=order*bytes,...` what reads paid for runs of L0 |
//! | `strategy` | reads a strategy file; what is wrong with it, or its name |
//! | `pick strategy=NAME` | the next plan of a preset, or of the strategy read last; `why` shows the candidates |
//! | `manual first=K last=K` | the next step of a manual compaction |
//! | `start` | the plan printed last begins to run |
//! | `done` | it ends, a move at once; `out=` lists its output files, commas between; prints the tree |
//! | `guards strategy=NAME` | which letters are guards, by level; of a preset, or of the strategy read last |
//! | `check` | checks a plan written as `merge L0.4:4,3 L1.1:2 -> L1.1` |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use siltstone::compaction::layout::Layout;
use siltstone::compaction::{
    Action, CompactionPolicy, CutRule, DecisionRecord, LsmView, ManualRequest, ManualStep, Place, Plan, PlanInput,
    ReadCounters, Reason, Release, Reuse, Sizes, Strategy, plan, plan_manual, strategies,
};
use siltstone::key::SeqNo;
use siltstone::version::text::{parse, parse_file, print};
use siltstone::version::{LevelId, RunOrder, SstId, Version, VersionEdit};

use crate::golden::{self, Command};

mod costs;
mod expansion;
mod guards;
mod invisible;
mod leveldb;
mod oracles;
mod phases;
mod proofs;
mod sim;

#[test]
fn decisions() {
    golden::run_folder("compaction", || {
        let mut room = Room::default();
        move |command: &Command| room.run(command).unwrap_or_else(|error| format!("error: {error}"))
    });
}

#[test]
fn every_preset_has_a_golden_file() {
    for preset in strategies() {
        let path = format!("{}/testdata/compaction/{}.txt", env!("CARGO_MANIFEST_DIR"), preset.name);
        #[expect(clippy::disallowed_methods, reason = "tests look at the checked-in files")]
        let exists = std::path::Path::new(&path).exists();
        assert!(exists, "{path} is missing");
        assert_eq!(Strategy::named(preset.name).unwrap().name, preset.name);
    }
}

#[derive(Default)]
struct Room {
    version: Version,
    strategy: Option<Strategy>,
    running: Vec<Arc<Plan>>,
    cursors: Vec<Bytes>,
    counters: BTreeMap<SstId, ReadCounters>,
    paid: BTreeMap<Place, u64>,
    last: Option<Plan>,
}

impl Room {
    fn run(&mut self, command: &Command) -> Result<String, String> {
        match &command.name[..] {
            "lsm" => self.lsm(command),
            "strategy" => self.read_strategy(command),
            "pick" => self.pick(command),
            "manual" => self.manual(command),
            "start" => Ok(self.start()),
            "done" => self.done(command),
            "check" => self.check(command),
            "guards" => self.guards(command),
            other => panic!("unknown command {other}"),
        }
    }

    fn lsm(&mut self, command: &Command) -> Result<String, String> {
        command.allow(&["read", "vain", "paid"]);
        self.version = parse(&command.input).map_err(|error| error.to_string())?;
        (self.running, self.cursors, self.counters) = (Vec::new(), Vec::new(), BTreeMap::new());
        self.paid = BTreeMap::new();
        for paid in command.value("paid").into_iter().flat_map(|paid| paid.split(',')) {
            let number = |text: &str| text.parse().map_err(|_| "paid=order of a run of L0*bytes,...");
            let (order, bytes) = paid.split_once('*').ok_or("paid=order of a run of L0*bytes,...")?;
            self.paid.insert(Place { level: LevelId(0), run: RunOrder(number(order)?) }, number(bytes)?);
        }
        for read in command.value("read").into_iter().flat_map(|reads| reads.split(',')) {
            let (id, at) = read.split_once('@').ok_or("read=id@ms,...")?;
            let last_read_ms = at.parse().map_err(|_| "read=id@ms")?;
            let counters = ReadCounters { last_read_ms, reads: 1, empty_reads: 0 };
            self.counters.insert(SstId(id.parse().map_err(|_| "read=id@ms")?), counters);
        }
        for vain in command.value("vain").into_iter().flat_map(|reads| reads.split(',')) {
            let (id, times) = vain.split_once('*').ok_or("vain=id*times,...")?;
            let empty_reads = times.parse().map_err(|_| "vain=id*times")?;
            let counters = ReadCounters { last_read_ms: 1, reads: empty_reads, empty_reads };
            self.counters.insert(SstId(id.parse().map_err(|_| "vain=id*times")?), counters);
        }
        Ok(String::new())
    }

    fn read_strategy(&mut self, command: &Command) -> Result<String, String> {
        // The messages of the parser draw the line; a blank line would end the expectation.
        let tidy = |text: String| text.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n");
        let strategy = Strategy::parse(&command.input).map_err(|error| tidy(error.to_string()))?;
        let name = strategy.name.clone();
        self.strategy = Some(strategy);
        Ok(name)
    }

    fn view(&self, command: &Command) -> LsmView<'_> {
        let size = |name: &str, default: u64| match command.value(name) {
            None => default,
            Some(text) => match text.strip_suffix('K') {
                Some(kib) => kib.parse::<u64>().unwrap() << 10,
                None => text.parse().unwrap(),
            },
        };
        let sizes = Sizes {
            memtable_bytes: size("memtable", 10 << 10),
            file_bytes: size("file", 10 << 10),
            size_ratio: command.parsed("size_ratio").unwrap_or(0),
            level1_bytes: size("level1", 0),
        };
        LsmView::new(&self.version, sizes)
            .with_running(&self.running)
            .with_cursors(&self.cursors)
            .with_counters(&self.counters)
            .with_read_work(&self.paid)
            .with_oldest_snapshot(command.parsed("snapshot").map(SeqNo))
            .with_losses(command.has("losses"))
            .with_last_write(command.parsed::<u64>("wrote"))
            .at(command.parsed("now").unwrap_or(0))
    }

    fn strategy(&self, command: &Command) -> Result<Strategy, String> {
        command.allow(&[
            "strategy",
            "l0_runs",
            "memtable",
            "file",
            "size_ratio",
            "level1",
            "snapshot",
            "losses",
            "now",
            "wrote",
            "first",
            "last",
        ]);
        let mut strategy = match command.value("strategy") {
            Some(name) => Strategy::named(name).map_err(|error| error.to_string())?,
            None => self.strategy.clone().ok_or("no strategy yet")?,
        };
        if let Some(runs) = command.parsed("l0_runs") {
            strategy.layout = Layout::OneLeveling { l0_runs: runs, two_phase: false };
        }
        Ok(strategy)
    }

    fn pick(&mut self, command: &Command) -> Result<String, String> {
        let strategy = self.strategy(command)?;
        let plan = plan(&strategy, &self.view(command)).map_err(|error| error.to_string())?;
        let text = match &plan {
            None => "nothing".to_owned(),
            Some(plan) if command.has("why") => format!("{plan}\n{}", why(plan)),
            Some(plan) => plan.to_string(),
        };
        self.last = plan;
        Ok(text)
    }

    fn manual(&mut self, command: &Command) -> Result<String, String> {
        let strategy = self.strategy(command)?;
        let bound = |name: &str| command.value(name).map(|key| Bytes::copy_from_slice(key.as_bytes()));
        let request = ManualRequest { first: bound("first"), last: bound("last") };
        let step = plan_manual(&strategy, &self.view(command), &request).map_err(|error| error.to_string())?;
        self.last = None;
        Ok(match step {
            ManualStep::Done => "done".to_owned(),
            ManualStep::Wait => "wait".to_owned(),
            ManualStep::Run(plan) => {
                let text = plan.to_string();
                self.last = Some(*plan);
                text
            }
        })
    }

    fn guards(&mut self, command: &Command) -> Result<String, String> {
        let strategy = self.strategy(command)?;
        let of = |level: u8| {
            let letters = ('a'..='z').map(|letter| letter.to_string());
            let guards =
                letters.filter(|key| strategy.guards(LevelId(level)).is_some_and(|g| g.is_guard(key.as_bytes())));
            format!("L{level} {}", guards.collect::<Vec<_>>().join(" ")).trim_end().to_owned()
        };
        Ok((0..4).map(of).collect::<Vec<_>>().join("\n"))
    }

    fn start(&mut self) -> String {
        let plan = self.last.take().expect("a plan was printed");
        let text = plan.cursor.as_ref().map_or(String::new(), |(level, key)| {
            self.cursors.resize(self.cursors.len().max(level.index() + 1), Bytes::new());
            self.cursors[level.index()] = key.clone();
            format!("cursor L{} {}", level.0, key.escape_ascii())
        });
        self.running.push(Arc::new(plan));
        text
    }

    fn done(&mut self, command: &Command) -> Result<String, String> {
        command.allow(&["out", "now"]);
        let plan = if self.last.is_some() { Arc::new(self.last.take().unwrap()) } else { self.running.remove(0) };
        let output = plan.output;
        let mut edit = VersionEdit { removed: plan.removed(), added: Vec::new() };
        match plan.action {
            Action::Merge => {
                for word in command.value("out").into_iter().flat_map(|files| files.split(',')) {
                    edit.added.push((output.level, output.run, Arc::new(parse_file(word, output.run)?)));
                }
            }
            Action::Move => edit.added = plan.moved(command.parsed("now").unwrap_or(0)),
            Action::Drop => {}
        }
        self.version = self.version.apply(&edit).map_err(|error| error.to_string())?;
        Ok(print(&self.version))
    }

    fn check(&mut self, command: &Command) -> Result<String, String> {
        command.allow(&["snapshot"]);
        let words: Vec<&str> = command.plain().collect();
        let place = |word: &str| -> Option<Place> {
            let (level, run) = word.strip_prefix('L')?.split_once('.')?;
            Some(Place { level: LevelId(level.parse().ok()?), run: RunOrder(run.parse().ok()?) })
        };
        let action = match words.first() {
            Some(&"merge") => Action::Merge,
            Some(&"move") => Action::Move,
            Some(&"drop") => Action::Drop,
            _ => return Err("merge, move or drop".to_owned()),
        };
        let mut inputs = Vec::new();
        for word in words[1..].iter().take_while(|word| **word != "->") {
            let (at, ids) = word.split_once(':').ok_or("L0.4:1,2")?;
            let at = place(at).ok_or("L0.4:1,2")?;
            let files = ids.split(',').filter(|id| !id.is_empty()).map(|id| {
                let id = SstId(id.parse().map_err(|_| "an id is a number")?);
                let gone = || parse_file(&format!("{}:a-b:1K", id.0), at.run).map(Arc::new);
                self.version.find(id).map_or_else(gone, |(_, _, file)| Ok(Arc::clone(file)))
            });
            let files: Result<Vec<_>, String> = files.collect();
            inputs.push(PlanInput { level: at.level, run: at.run, files: files? });
        }
        let output = words
            .iter()
            .skip_while(|word| **word != "->")
            .nth(1)
            .map_or(Some(Place { level: LevelId(0), run: RunOrder(0) }), |word| place(word));
        let plan = Plan {
            inputs,
            output: output.ok_or("-> L1.1")?,
            action,
            cut: CutRule { file_bytes: 1, align: false, grandparent_bytes: 0, guards: None },
            reuse: Reuse::Never,
            borders: Vec::new(),
            cursor: None,
            release: Release::AtEnd,
            record: DecisionRecord::new(Reason::Policy("by hand".to_owned()), "none", 0.0, 0.0),
        };
        let answer = plan.check(&self.view(command)).map_or_else(|broken| broken.to_string(), |()| "legal".to_owned());
        self.last = Some(plan);
        Ok(answer)
    }
}

fn why(plan: &Plan) -> String {
    let record = &plan.record;
    let mut text = format!(
        "  reads {}, writes at most {}, {} candidates",
        record.read_bytes, record.write_bytes, record.candidates_total
    );
    for candidate in &record.candidates {
        let scores: Vec<String> = candidate.scores.iter().map(|score| format!("{score:.2}")).collect();
        let mark = match (candidate.chosen, candidate.blocked) {
            (true, _) => "  chosen",
            (_, true) => "  blocked",
            _ => "",
        };
        write!(text, "\n  {} scores {}{mark}", candidate.file.0, scores.join(", ")).unwrap();
    }
    text
}

/// Deepest first: looks at the level with nine tenths of the files.
const DEEPEST: &str = r#"
name = "deepest"
priority = "deepest-first"
layout = { kind = "leveling" }
[[rule]]
trigger = { kind = "level-saturation" }
granularity = { kind = "file" }
movement = ["MOVEMENT"]
"#;

#[test]
fn the_planner_answers_in_time_on_a_tree_of_ten_thousand_files() {
    let version = invisible::large_tree(10_000);
    let sizes = Sizes { memtable_bytes: 100, file_bytes: 100, size_ratio: 0, level1_bytes: 0 };
    let view = LsmView::new(&version, sizes).with_losses(true);
    let presets = strategies().iter().map(|preset| preset.text.to_owned());
    let deepest = ["min-overlap-ratio", "least-overlap-grandparent", "round-robin", "coldest", "refined-mor", "random"];
    let deepest = deepest.iter().map(|movement| DEEPEST.replace("MOVEMENT", movement));
    for text in presets.chain(deepest) {
        let strategy = Strategy::parse(&text).unwrap();
        let picked = took(|| drop(plan(&strategy, &view).unwrap()));
        let everything = took(|| drop(plan_manual(&strategy, &view, &ManualRequest::default()).unwrap()));
        // Far more than it takes, so that it holds on a busy machine and in a debug build. A plan that moves a whole level names its files.
        let named = plan(&strategy, &view).unwrap().map_or(0, |plan| plan.files().count());
        assert!(picked < 10.0 + named as f64 / 200.0, "{}: a pick takes {picked} ms", strategy.name);
        assert!(everything < 10.0, "{}: a manual step takes {everything} ms", strategy.name);
    }
}

/// Milliseconds that `work` takes, the best of ten times: the machine does other things as well.
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of speed")]
fn took(work: impl Fn()) -> f64 {
    let once = |_| {
        let start = std::time::Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1000.0
    };
    (0..10).map(once).fold(f64::INFINITY, f64::min)
}
