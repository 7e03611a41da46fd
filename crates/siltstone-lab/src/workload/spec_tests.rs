//! Whole specs: what they give, that they give it again, and what is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use siltstone::io::Rng;
use siltstone::key::hash;

use super::*;
use crate::num::{count, index};

/// Compares with a file, or writes it: `GOLDEN=rewrite cargo test -p siltstone-lab`.
fn golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "rewrite") {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "GOLDEN=rewrite cargo test -p siltstone-lab rewrites {}", path.display());
}

fn shipped(name: &str, records: Option<i64>) -> Spec {
    let mut set: Vec<(String, toml::Value)> = records.map(|n| ("records".to_owned(), n.into())).into_iter().collect();
    if name == "real-data" {
        set.push(("keys.path".to_owned(), own_data().into()));
    }
    Spec::choose(name, &set).unwrap()
}

/// A file for the spec that needs one, beside the tests' program: it may stay there.
fn own_data() -> &'static str {
    static PATH: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let path = std::env::current_exe().unwrap().with_file_name("workload-tests.tsv");
        let line = |i: u64| format!("path/{}:{i}\twhat stands in line {i}{}\n", i % 97, "!".repeat(index(i % 61)));
        std::fs::write(&path, (0..5000).map(line).collect::<String>()).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

/// One number for all that up to `most` operations of a client say.
fn digest(spec: &Spec, client: u32, most: u64) -> (u64, u64) {
    let mut generator = Generator::new(spec, client).unwrap();
    let (mut digest, mut done) = (0u64, 0);
    let mut bytes = Vec::new();
    loop {
        // A phase without an end ends here after some.
        let mut of_phase = 0;
        while of_phase < most && done < most {
            let Some(op) = generator.next().unwrap() else { break };
            bytes.clear();
            bytes.push(u8::try_from(OpKind::ALL.iter().position(|kind| *kind == op.kind).unwrap()).unwrap());
            bytes.extend_from_slice(&op.keyspace.to_le_bytes());
            bytes.extend_from_slice(&op.count.to_le_bytes());
            op.keys().for_each(|key| bytes.extend_from_slice(key));
            bytes.extend_from_slice(op.end);
            bytes.extend_from_slice(&count(op.value.len()).to_le_bytes());
            bytes.extend_from_slice(&op.value[..op.value.len().min(16)]);
            digest = digest.rotate_left(5) ^ hash(&bytes);
            (of_phase, done) = (of_phase + 1, done + 1);
        }
        if done >= most || !generator.next_phase() {
            return (digest, done);
        }
    }
}

/// The stream is part of every published figure: when a line changes, `GENERATOR_VERSION` must go up. The first million operations of the first
/// client, and all of a hundredth of the workload (at most 20,000 operations) by each client.
#[test]
fn every_shipped_spec_gives_what_it_always_gave() {
    let names: Vec<&str> = Spec::shipped().iter().map(|(name, _)| *name).collect();
    let line = |name: &&str| {
        let spec = shipped(name, None);
        let (first, done) = digest(&spec, 0, 1_000_000);
        let mut line = format!("{name} {done} {first:016x}");
        let small = shipped(name, Some(2000));
        for client in 0..small.most_clients() {
            let (digest, done) = digest(&small, client, 20_000);
            write!(line, " {done} {digest:016x}").unwrap();
        }
        line + "\n"
    };
    let (left, right) = names.split_at(names.len() / 2);
    let lines = std::thread::scope(|scope| {
        let left = scope.spawn(|| left.iter().map(line).collect::<String>());
        let right: String = right.iter().map(line).collect();
        left.join().unwrap() + &right
    });
    golden("workload-digests.txt", &format!("generator version {GENERATOR_VERSION}\n{lines}"));
}

#[test]
fn a_spec_is_the_same_after_a_round_trip() {
    for (name, text) in Spec::shipped() {
        // One counts its records in a file.
        let spec = if text.contains("records = ") { Spec::parse(text, name).unwrap() } else { shipped(name, None) };
        assert_eq!(spec.name, *name);
        assert!(!spec.about.is_empty() && text.starts_with("# "), "{name}: where it comes from stands in its header");
        assert_eq!(Spec::parse(spec.text(), "again").unwrap(), spec, "{name}");
    }
    let (key, value) = ("phase.run.clients".to_owned(), 3.into());
    let spec = Spec::choose("ycsb-a", &[(key, value), ("phase.0.batch".to_owned(), 7.into())]).unwrap();
    assert_eq!((spec.phases[1].own.clients, spec.phases[0].own.batch, spec.most_clients()), (3, 7, 3));
    assert!(Spec::choose("ycsb-z", &[]).unwrap_err().to_string().contains("ycsb-a"));
    let wrong = Spec::choose("ycsb-a", &[("phase.walk.clients".to_owned(), 3.into())]).unwrap_err().to_string();
    assert!(wrong.contains("phase.walk.clients") && wrong.contains("no \"walk\""), "{wrong}");
}

/// What a store holds, checked operation by operation.
#[derive(Default)]
struct Model {
    live: BTreeMap<u16, BTreeSet<Vec<u8>>>,
    ever: BTreeSet<(u16, Vec<u8>)>,
}

impl Model {
    /// Does an operation; says what is wrong with it.
    fn apply(&mut self, op: &Op<'_>) -> Result<(), String> {
        let live = self.live.entry(op.keyspace).or_default();
        let key = op.key.to_vec();
        let is = |there: bool, what: &str| if there { Ok(()) } else { Err(format!("{what}: {op:?}")) };
        match op.kind {
            OpKind::Insert => {
                self.ever.insert((op.keyspace, key.clone()));
                is(live.insert(key), "an insert of a key that is there")
            }
            OpKind::Delete => is(live.remove(&key), "a delete of a key that is not there"),
            OpKind::RangeDelete => {
                let within: Vec<Vec<u8>> = live.range(key..op.end.to_vec()).cloned().collect();
                within.iter().for_each(|key| assert!(live.remove(key)));
                is(count(within.len()) == u64::from(op.count), &format!("a range delete that finds {}", within.len()))
            }
            OpKind::GetMissing | OpKind::DeleteMissing => {
                is(!self.ever.contains(&(op.keyspace, key)), "a missing key that was stored")
            }
            OpKind::ScanPrefix => is(live.iter().any(|live| live.starts_with(&key)), "a prefix that no key has"),
            OpKind::Scan | OpKind::ScanReverse if key.is_empty() => Ok(()),
            kind if kind.needs_key() => op.keys().try_for_each(|key| is(live.contains(key), "a key that is not there")),
            _ => Ok(()),
        }
    }
}

/// Runs all clients of a spec beside each other, whose turn it is decided by `seed`; the number of operations by kind.
fn run(spec: &Spec, seed: u64, per_phase: u64) -> Result<BTreeMap<OpKind, u64>, String> {
    let (mut model, mut kinds, mut rng) = (Model::default(), BTreeMap::new(), Rng::new(seed));
    let mut clients: Vec<Generator> = (0..spec.most_clients()).map(|c| Generator::new(spec, c).unwrap()).collect();
    let mut expected_missing_between = (0u64, 0u64);
    for phase in &spec.phases {
        let mut own: Vec<usize> = (0..index(u64::from(phase.own.clients))).collect();
        let beside: Vec<usize> = (own.len()..index(u64::from(phase.clients()))).collect();
        let mut left = per_phase;
        // Those beside go on until the phase's own clients are done.
        while !own.is_empty() && left > 0 {
            left -= 1;
            let at = index(rng.below(count(own.len() + beside.len())));
            let client = own.get(at).copied().unwrap_or_else(|| beside[at - own.len()]);
            loop {
                let Some(op) = clients[client].next().map_err(|error| format!("{error:#}"))? else {
                    own.retain(|other| *other != client);
                    break;
                };
                model.apply(&op).map_err(|what| format!("client {client}, phase {}: {what}", phase.name))?;
                if op.kind == OpKind::GetMissing {
                    let (first, last) = ((op.keyspace, Vec::new()), (op.keyspace, vec![0xff; 64]));
                    let mut stored = model.ever.range(first..last);
                    let is_inside = stored.next().is_some_and(|(_, first)| **first < *op.key)
                        && stored.next_back().is_some_and(|(_, last)| **last > *op.key);
                    expected_missing_between.0 += u64::from(is_inside);
                    expected_missing_between.1 += 1;
                }
                *kinds.entry(op.kind).or_default() += 1;
                if !op.continues {
                    break;
                }
            }
        }
        clients.iter_mut().for_each(|client| {
            client.next_phase();
        });
    }
    let (inside, all) = expected_missing_between;
    if inside * 10 < all * 8 {
        return Err(format!("only {inside} of {all} missing keys lie among those that were stored"));
    }
    Ok(kinds)
}

#[test]
fn existing_keys_exist_and_missing_ones_do_not() {
    for (name, _) in Spec::shipped() {
        let spec = shipped(name, Some(300));
        if let Err(what) = run(&spec, 1, 3000) {
            panic!("{name}: {what}");
        }
    }
    for seed in 0..150 {
        let text = any_spec(&mut Rng::new(seed));
        let spec = Spec::parse(&text, "any").unwrap_or_else(|error| panic!("{error:#}\n{text}"));
        match run(&spec, seed, 3000) {
            Err(what) if !what.contains("no key is left") => panic!("seed {seed}: {what}\n{text}"),
            _ => {}
        }
    }
}

fn one_of<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[index(rng.below(count(of.len())))]
}

/// A small workload of any kind of keys, laws and deletes.
fn any_spec(rng: &mut Rng) -> String {
    let plain = rng.one_in(2);
    let one_client = rng.one_in(2);
    let keys = if plain {
        one_of(
            rng,
            &[
                "kind = \"string\"\nprefix = \"u\"\nbytes = 12",
                "kind = \"integer\"\nbytes = 4",
                "kind = \"binary\"\nbytes = { kind = \"uniform\", min = 8, max = 30 }",
                "kind = \"string\"\nbytes = { kind = \"uniform\", min = 9, max = 20 }\nalphabet = \"alphanumeric\"",
            ],
        )
    } else {
        one_of(
            rng,
            &[
                "kind = \"composite\"\nsegments = [{ kind = \"group\", count = 50, letters = 2, law = { kind = \"zipf\", theta = 1.0 } }, { kind = \"number\", letters = 14 }]",
                "kind = \"composite\"\nseparator = \":\"\nsegments = [{ kind = \"number\", letters = 14 }, { kind = \"random\", bytes = { kind = \"uniform\", min = 0, max = 9 } }]",
                "kind = \"composite\"\nseparator = \"-\"\nsegments = [{ kind = \"choice\", of = [\"a\", \"bcd\"], weights = [1.0, 2.0] }, { kind = \"number\", letters = 14 }]",
                "kind = \"composite\"\nsegments = [{ kind = \"series\", count = 7, letters = 2 }, { kind = \"time\", interval = 10, sparsity = 0.3, series = 7 }]",
            ],
        )
    };
    let orders = ["\"random\"", "\"ordered\"", "{ kind = \"near-sorted\", share = 0.3, distance = 20 }", "\"hashed\""];
    let is_time = keys.contains("\"time\"");
    let order = one_of(rng, if plain || is_time { &orders[..3] } else { &orders });
    let laws = [
        "\"uniform\"",
        "{ kind = \"zipf\", theta = 0.99 }",
        "\"latest\"",
        "\"sequential\"",
        "{ kind = \"normal\", mean = 0.5, deviation = 0.1 }",
        "{ kind = \"hotspot\", data = 0.2, operations = 0.8 }",
        "{ kind = \"zipf\", theta = 2.5 }",
        "{ kind = \"window\", newest = 20, skip = 3 }",
        "\"oldest\"",
        "{ kind = \"exponential\", percentile = 95, data = 0.1 }",
    ];
    let law = |rng: &mut Rng| {
        let law = one_of(rng, &laws);
        let over = plain && one_client && !law.contains("latest") && !law.contains("window") && !law.contains("oldest");
        let over = if over && rng.one_in(3) { ", over = \"keys\"" } else { "" };
        format!("law = {law}{over}")
    };
    let mut text =
        format!("name = \"any\"\nseed = {}\nrecords = 500\n\n[keys]\n{keys}\norder = {order}\n\n", rng.below(1000));
    if rng.one_in(4) {
        text += "[[index]]\nname = \"by\"\ncardinality = 9\n\n";
    }
    let has_index = text.contains("[[index]]");
    if rng.one_in(4) {
        text += "[[keyspace]]\nname = \"a\"\n\n[[keyspace]]\nname = \"b\"\nweight = 3.0\n\n";
    }
    let clients = |rng: &mut Rng| if one_client { 1 } else { rng.between(1, 4) };
    write!(
        text,
        "[[phase]]\nname = \"load\"\noperations = 400\nclients = {}\nmix = [{{ do = \"insert\" }}]\n\n",
        clients(rng)
    )
    .unwrap();
    let ranges = plain && one_client && !has_index && !text.contains("[[keyspace]]");
    for phase in 0..rng.between(1, 3) {
        let interleave = one_of(rng, &["independent", "proportional", "serial"]);
        let keep = if rng.one_in(4) { "keep = 300\n" } else { "" };
        write!(text, "[[phase]]\nname = \"p{phase}\"\noperations = 900\nclients = {}\ninterleave = \"{interleave}\"\n{keep}mix = [\n", clients(rng)).unwrap();
        let mut kinds = vec!["get", "update", "get-missing", "scan", "read-modify-write", "delete-missing"];
        if !text.contains("[[keyspace]]") {
            kinds.push("multi-get");
        }
        if rng.one_in(2) || !keep.is_empty() {
            kinds.push("insert");
            if keep.is_empty() {
                kinds.push("delete");
            }
        }
        if ranges && rng.one_in(2) && keep.is_empty() {
            kinds.push("range-delete");
        }
        let rare = |kind: &str| if kind == "range-delete" { 1 } else { 10 };
        let total: u64 = kinds.iter().map(|kind| rare(kind)).sum();
        for kind in &kinds {
            let share = crate::num::ratio(rare(kind), total);
            let length = if ["multi-get", "scan", "range-delete"].contains(kind) { ", length = 5" } else { "" };
            let law = match *kind {
                "insert" => "reuse = 0.3".to_owned(),
                // A law by age would ask beside the newest key, which may be the largest: beyond all others.
                "get-missing" => "law = \"uniform\"".to_owned(),
                _ => law(rng),
            };
            writeln!(text, "    {{ do = \"{kind}\", share = {share}{length}, {law} }},").unwrap();
        }
        text += "]\n\n";
    }
    text
}

/// The checker sees what it should: the same operations against a store that forgot one key.
#[test]
fn a_key_that_is_gone_is_noticed() {
    let spec = shipped("ycsb-c", Some(50));
    let mut generator = Generator::new(&spec, 0).unwrap();
    let mut model = Model::default();
    while let Some(op) = generator.next().unwrap() {
        model.apply(&op).unwrap();
    }
    let lost = model.live.get_mut(&0).unwrap().pop_first();
    assert!(lost.is_some() && generator.next_phase());
    let mut missed = 0;
    while let Some(op) = generator.next().unwrap() {
        missed += u64::from(model.apply(&op).is_err());
    }
    assert!(missed > 0);
}

#[test]
fn keys_and_values_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real.tsv");
    let lines: String = (0..1000).map(|i| format!("key-{}\tvalue {i}\n", i * 7919 % 1000)).collect();
    std::fs::write(&path, lines).unwrap();
    let text = "name = \"real\"\n[keys]\nkind = \"file\"\npath = \"real.tsv\"\n[values]\ncontent = \"file\"\n[[phase]]\nname = \"load\"\n\
                operations = \"100%\"\nmix = [{ do = \"insert\" }]\n[[phase]]\nname = \"run\"\noperations = \"200%\"\nclients = 2\nmix = [\n\
                { do = \"get\", share = 0.3, law = { kind = \"zipf\", theta = 0.99 } },\n{ do = \"update\", share = 0.2 },\n\
                { do = \"delete\", share = 0.1 },\n{ do = \"get-missing\", share = 0.3 },\n{ do = \"scan\", share = 0.1, length = 9 }]\n";
    let file = folder.path().join("real.toml");
    std::fs::write(&file, text.replace("[keys]", "records = 1000\n[keys]")).unwrap();
    let spec = Spec::choose(file.to_str().unwrap(), &[]).unwrap();
    assert_eq!(spec.records, 1000);
    let kinds = run(&spec, 3, 10_000).unwrap();
    assert!(kinds[&OpKind::Insert] == 1000 && kinds[&OpKind::Delete] > 100, "{kinds:?}");
    let mut generator = Generator::new(&spec, 0).unwrap();
    while let Some(op) = generator.next().unwrap() {
        let number: u64 = std::str::from_utf8(&op.key[4..]).unwrap().parse().unwrap();
        let value: u64 = std::str::from_utf8(&op.value[6..]).unwrap().parse().unwrap();
        assert_eq!(value * 7919 % 1000, number, "an insert stores the value that stands beside the key");
    }
    // Counted, if the spec does not say how many.
    std::fs::write(&file, text).unwrap();
    assert_eq!(Spec::choose(file.to_str().unwrap(), &[]).unwrap().records, 1000);
    // Results are gone on with from another folder, too.
    let absolute = |path: &std::path::Path| format!("path = {:?}", std::path::absolute(path).unwrap());
    assert!(spec.text().contains(&absolute(&path)), "{}", spec.text());
    let up = "../".repeat(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).components().count() - 1);
    let relative = format!("{up}{}", path.strip_prefix("/").unwrap().display());
    let set = [("keys.path".to_owned(), toml::Value::from(relative.clone()))];
    let other = Spec::choose("real-data", &set).unwrap();
    assert!(other.text().contains(&absolute(std::path::Path::new(&relative))), "{}", other.text());
    assert_eq!(Spec::with(other.text(), &set).unwrap().text(), other.text());
    // More than there are.
    let more = Spec::choose(file.to_str().unwrap(), &[("records".to_owned(), 1001.into())]).unwrap();
    let error = format!("{:#}", Generator::new(&more, 0).unwrap_err());
    assert!(error.contains("inserts 1001 keys") && error.contains("has 1000"), "{error}");
}

#[test]
fn checked_values_belong_to_their_keys() {
    let text = "name = \"v\"\nrecords = 1000\n[values]\nchecked = true\nbytes = { kind = \"uniform\", min = 8, max = 300 }\n[[phase]]\nname = \"a\"\n\
                operations = 1000\nmix = [{ do = \"insert\" }]\n[[phase]]\nname = \"b\"\noperations = 4000\nmix = [{ do = \"update\", same = 0.5 }]\n";
    let spec = Spec::parse(text, "v").unwrap();
    let mut generator = Generator::new(&spec, 0).unwrap();
    let mut first = BTreeMap::new();
    let mut other: Option<Vec<u8>> = None;
    while let Some(op) = generator.next().unwrap() {
        assert!(value_belongs(op.key, op.value));
        assert!(!other.as_ref().is_some_and(|other| value_belongs(op.key, other)), "another key's value");
        other = Some(op.value.to_vec());
        first.insert(op.key.to_vec(), op.value.to_vec());
    }
    assert!(generator.next_phase());
    let mut same = 0;
    while let Some(op) = generator.next().unwrap() {
        assert!(value_belongs(op.key, op.value));
        same += u64::from(first[op.key] == op.value);
    }
    assert!((1900..2100).contains(&same), "{same} of 4000 should be as at first");
}

/// Two clients that change keys, one, and four: each works out what the others did.
#[test]
fn clients_agree_on_who_has_what() {
    let mut text =
        "name = \"c\"\nrecords = 1000\n[[phase]]\nname = \"load\"\noperations = 1001\nmix = [{ do = \"insert\" }]\n"
            .to_owned();
    for (phase, clients) in [2, 1, 4, 3, 4, 1].iter().enumerate() {
        write!(
            text,
            "[[phase]]\nname = \"p{phase}\"\noperations = 700\nclients = {clients}\nmix = [{{ do = \"insert\", share = 0.3 }}, {{ do = \"delete\", share = 0.3 }}, \
             {{ do = \"get\", share = 0.4 }}]\n"
        )
        .unwrap();
    }
    let spec = Spec::parse(&text, "c").unwrap();
    for seed in 0..10 {
        let kinds = run(&spec, seed, 10_000).unwrap();
        assert_eq!(kinds.values().sum::<u64>(), 1001 + 6 * 700);
    }
}

#[test]
fn numbers_are_exact_and_start_when_they_should() {
    let spec = shipped("sarkar21-mixed", Some(10_000));
    let mut generator = Generator::new(&spec, 0).unwrap();
    let (mut inserts, mut firsts) = (0, BTreeMap::new());
    let mut kinds: BTreeMap<OpKind, u64> = BTreeMap::new();
    while let Some(op) = generator.next().unwrap() {
        firsts.entry(op.kind).or_insert(inserts);
        inserts += u64::from(op.kind == OpKind::Insert);
        *kinds.entry(op.kind).or_default() += 1;
    }
    assert_eq!(kinds.into_values().collect::<Vec<_>>(), [10_000, 500, 500, 1000]);
    assert!(firsts[&OpKind::Get] >= 4000 && firsts[&OpKind::Get] < 4200, "{firsts:?}");
    assert!(firsts[&OpKind::Scan] >= 1000 && firsts[&OpKind::Scan] < 1050, "{firsts:?}");
}

#[test]
fn a_mix_shifts() {
    let spec = shipped("drift", Some(20_000));
    let mut generator = Generator::new(&spec, 0).unwrap();
    (0..3).for_each(|_| assert!(generator.next_phase()));
    let mut shares = Vec::new();
    for _ in 0..2 {
        let kinds: Vec<OpKind> = std::iter::from_fn(|| generator.next().unwrap().map(|op| op.kind)).collect();
        assert_eq!(kinds.len(), 10_000);
        let updates = |ops: &[OpKind]| ops.iter().filter(|kind| **kind == OpKind::Update).count();
        shares.push(kinds.chunks(2500).map(updates).collect::<Vec<_>>());
        generator.next_phase();
    }
    let near = |seen: usize, expected: usize| seen.abs_diff(expected) < 150;
    let slow = [281, 844, 1406, 1969];
    assert!(shares[0].iter().zip(slow).all(|(seen, expected)| near(*seen, expected)), "{shares:?}");
    let abrupt = [2250, 2250, 250, 250];
    assert!(shares[1].iter().zip(abrupt).all(|(seen, expected)| near(*seen, expected)), "{shares:?}");
}

/// Memory does not follow the number of keys; what could make it is refused.
#[test]
fn a_trillion_keys_cost_nothing_and_deletes_at_random_have_a_limit() {
    let spec = |delete: &str| {
        format!(
            "name = \"big\"\nrecords = 1_000_000_000_000\n[keys]\nkind = \"integer\"\n[[phase]]\nname = \"load\"\noperations = \"100%\"\nmix = [\n\
             {{ do = \"insert\", share = 0.6 }},\n{{ do = \"get\", share = 0.1, law = {{ kind = \"zipf\", theta = 0.99 }} }},\n{{ do = \"delete\", share = 0.3{delete} }}]\n"
        )
    };
    let queue = Spec::parse(&spec(", law = \"oldest\""), "big").unwrap();
    let mut generator = Generator::new(&queue, 0).unwrap();
    (0..100_000).for_each(|_| assert!(generator.next().unwrap().is_some()));
    assert!(Spec::parse(&spec(""), "big").unwrap_err().to_string().contains("a bit each"));
}

#[test]
fn wrong_specs_are_refused_with_their_line_and_what_would_be_right() {
    let good = "name = \"w\"\nrecords = 1000\n\n[keys]\nkind = \"string\"\nbytes = 12\n\n[[phase]]\nname = \"load\"\noperations = \"100%\"\nmix = [{ do = \"insert\" }]\n\n\
                [[phase]]\nname = \"run\"\noperations = 1000\nmix = [\n    { do = \"get\", share = 0.5 },\n    { do = \"update\", share = 0.5 },\n]\n";
    Spec::parse(good, "w.toml").unwrap();
    let get = "{ do = \"get\", share = 0.5 }";
    let with = |what: &str| (get, format!("{{ do = \"get\", share = 0.5, {what} }}"));
    let kind = |what: &str| (get, format!("{{ share = 0.5, {what} }}"));
    let run = |what: &str| ("name = \"run\"\n", format!("name = \"run\"\n{what}\n"));
    let keys = |what: &str| ("kind = \"string\"\nbytes = 12\n", format!("{what}\n"));
    let cases: Vec<(&str, String)> = vec![
        ("share = 0.5 },\n    { do = \"update\"", "share = 0.6 },\n    { do = \"update\"".into()),
        with("law = \"zipf\""),
        with("law = { kind = \"zipf\", theta = -1.0 }"),
        with("law = { kind = \"zipff\", theta = 1.0 }"),
        with("law = { kind = \"zipf\", theta = 1.0, alpha = 2 }"),
        with("law = { kind = \"normal\", mean = 0.5 }"),
        with("law = { kind = \"hot-range\", start = 0.95, width = 0.1, operations = 1.0 }"),
        with("law = { kind = \"exponential\", percentile = 100, data = 0.1 }"),
        with("law = \"latest\", hot = \"first\""),
        with("length = 5"),
        with("colour = \"red\""),
        with("drift = { every = 0, step = 0.1 }"),
        with("after = 0.5"),
        with("share_to = 0.5"),
        with("every = 10"),
        kind("do = \"merge\""),
        kind("do = \"single-delete\""),
        kind("do = \"scan\""),
        kind("do = \"scan\", length = 0"),
        kind("do = \"multi-get\""),
        kind("do = \"scan-prefix\""),
        kind("do = \"scan\", length = { kind = \"pareto\", theta = 0.0, min = 1, max = 10 }"),
        kind("do = \"scan\", length = { kind = \"uniform\", min = 10, max = 1 }"),
        kind("do = \"scan\", length = 3, index = \"by\""),
        kind("do = \"insert\", law = \"latest\""),
        kind("do = \"upsert\""),
        ("{ do = \"insert\" }", "{ do = \"update\" }".into()),
        ("{ do = \"insert\" }", "{ do = \"get-missing\" }".into()),
        ("\"100%\"", "\"half\"".into()),
        ("\"100%\"", "-5".into()),
        ("operations = 1000\n", String::new()),
        ("records = 1000\n", String::new()),
        ("name = \"run\"", "name = \"load\"".into()),
        ("name = \"w\"", "name = \"a b\"".into()),
        run("clients = 0"),
        run("batch = 0"),
        run("arrivals = { kind = \"open\", per_second = 0.0 }"),
        run("arrivals = { kind = \"share\", of_maximum = 0.95, of_phase = \"lode\" }"),
        run("arrivals = { kind = \"share\", of_maximum = 1e-7, of_phase = \"load\" }"),
        run("arrivals = { kind = \"stretches\", of = [{ per_second = 1e-7, for = \"1s\" }] }"),
        run("arrivals = \"open\""),
        run("shift = \"slow\""),
        run("duration = \"soon\""),
        run("durability = \"paper\""),
        run("keep = 10"),
        run("ingest = true"),
        run("interleave = \"proportional\"\nduration = \"1s\"\n#"),
        keys("kind = \"string\"\nbytes = 3"),
        keys("kind = \"integer\"\nbytes = 5"),
        keys("kind = \"string\"\nbytes = 12\nprefix = \"a long long prefix\""),
        keys("kind = \"file\""),
        keys("kind = \"file\"\npath = \"x\"\norder = \"hashed\""),
        keys("kind = \"composite\"\nsegments = [{ kind = \"random\", bytes = 4 }]"),
        keys("kind = \"composite\"\nsegments = [{ kind = \"time\", interval = 1 }]"),
        keys(
            "kind = \"composite\"\nsegments = [{ kind = \"choice\", of = [\"a\", \"bc\"] }, { kind = \"number\" }, { kind = \"choice\", of = [\"a\", \"bc\"] }]",
        ),
        keys("kind = \"string\"\nbytes = 12\norder = { kind = \"near-sorted\", share = 2.0, distance = 5 }"),
        keys("kind = \"string\"\nbytes = 4\norder = { kind = \"near-sorted\", share = 0.5, distance = 12000 }"),
        ("[[phase]]\nname = \"load\"", "[values]\nchecked = true\nbytes = 5\n\n[[phase]]\nname = \"load\"".into()),
        ("[[phase]]\nname = \"load\"", "[values]\ncontent = \"file\"\n\n[[phase]]\nname = \"load\"".into()),
        kind("do = \"secondary-range-delete\""),
        ("[keys]", "[[keyspace]]\nname = \"a\"\n[[keyspace]]\nname = \"a\"\n[keys]".into()),
        ("[keys]", "[keys".into()),
    ];
    let mut text = String::new();
    for (from, to) in cases {
        assert!(good.contains(from), "{from:?}");
        match Spec::parse(&good.replacen(from, &to, 1), "w.toml") {
            Ok(_) => writeln!(text, "{}\n    accepted", to.trim().escape_debug()).unwrap(),
            Err(error) => {
                let error = format!("{error:#}");
                writeln!(text, "{}\n    {}", to.trim().escape_debug(), error.replace('\n', "\n    ")).unwrap();
            }
        }
    }
    golden("workload-refusals.txt", &text);
}

/// A whole spec of the documents is read as it stands, and a part of one with a phase after it.
#[test]
fn the_specs_of_the_documents_are_right() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut seen = 0;
    for document in ["README.md", "docs/workloads.md", "docs/design/0008-workloads-and-runs.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        for block in text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
            let is_whole = block.contains("[[phase]]");
            if !is_whole && !block.contains("[keys]") {
                continue;
            }
            seen += 1;
            let phase = "\n[[phase]]\nname = \"load\"\noperations = 100\nmix = [{ do = \"insert\" }]\n";
            let text = if is_whole { block.to_owned() } else { format!("name = \"part\"\n{block}{phase}") };
            let read = Spec::parse(&text, document);
            assert!(read.is_ok(), "{document}: {:#}\n{block}", read.unwrap_err());
        }
    }
    assert!(seen >= 3, "{seen} specs");
}

/// Swaps reach to the end of the last block: keys there had one digit too few, and were those of others.
#[test]
fn a_nearly_sorted_order_repeats_no_key() {
    let text = "name = \"n\"\nrecords = 4999\n[keys]\nkind = \"string\"\nbytes = 5\norder = { kind = \"near-sorted\", share = 0.5, distance = 2000 }\n\
                [[phase]]\nname = \"load\"\noperations = \"100%\"\nmix = [{ do = \"insert\" }]\n";
    assert!(Spec::parse(&text.replace("bytes = 5", "bytes = 4"), "n").unwrap_err().to_string().contains("do not fit"));
    let mut generator = Generator::new(&Spec::parse(text, "n").unwrap(), 0).unwrap();
    let mut keys = std::collections::BTreeSet::new();
    while let Some(op) = generator.next().unwrap() {
        assert!(keys.insert(op.key.to_vec()), "{:?} twice", op.key);
    }
    assert_eq!(keys.len(), 4999);
}

/// It read the rows whatever `index` said, and always the same one of several keyspaces.
#[test]
fn a_scan_of_everything_reads_what_it_names() {
    let text = "name = \"s\"\nrecords = 10\n[[index]]\nname = \"by\"\ncardinality = 5\n[[phase]]\nname = \"load\"\noperations = \"100%\"\n\
                mix = [{ do = \"insert\" }]\n[[phase]]\nname = \"all\"\noperations = 1\nmix = [{ do = \"scan\", whole = true, index = \"by\" }]\n";
    let spec = Spec::parse(text, "s").unwrap();
    let mut generator = Generator::new(&spec, 0).unwrap();
    while generator.next().unwrap().is_some() {}
    assert!(generator.next_phase());
    let keyspace = usize::from(generator.next().unwrap().unwrap().keyspace);
    assert_eq!(spec.keyspace_names()[keyspace], "by");
    let two = text.replace("[[index]]", "[[keyspace]]\nname = \"a\"\n[[keyspace]]\nname = \"b\"\n[[index]]");
    assert!(Spec::parse(&two, "s").is_ok());
    let error = Spec::parse(&two.replace(", index = \"by\"", ""), "s").unwrap_err().to_string();
    assert!(error.contains("several"), "{error}");
}
