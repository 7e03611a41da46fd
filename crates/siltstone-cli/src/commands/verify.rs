//! `verify STORE`

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use siltstone::ErrorKind;
use siltstone_lab::report::bytes;

use super::args::Telling;
use crate::failure::is_closed_pipe;
use crate::interrupt::Interrupt;
use crate::output::{hex, plural, visible};
use crate::progress::Meter;
use crate::store::{StoreArgs, TRIES};

/// Check every checksum and every law of the tree; nothing is changed.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print the findings as JSON")))]
#[command(after_long_help = "Examples:
  siltstone verify shop
  siltstone verify shop --json | jq '.damage[].file'

Every damaged file is named, with the offset and the range of keys that may be lost. A note tells what cannot be read \
and nothing needs, such as the file of the last decisions; a crash may leave that as well. Exit code 0: all is well, \
but for notes; 2: damage.")]
pub(crate) struct Verify {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    telling: Telling,
}

#[derive(Serialize)]
struct Report {
    files: u64,
    bytes: u64,
    entries: u64,
    /// Records of the log; they were checked when the store was opened.
    log_records: u64,
    damage: Vec<Damage>,
    /// What cannot be read and is not needed.
    notes: Vec<Damage>,
}

#[derive(Serialize)]
struct Damage {
    file: String,
    offset: Option<u64>,
    what: String,
    keyspace: Option<String>,
    first_key_hex: Option<String>,
    last_key_hex: Option<String>,
    #[serde(skip)]
    keys: String,
}

impl Verify {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let report = match self.check(interrupt) {
            Ok(report) => report,
            // A store that does not even open is damaged, too: say so in the same form.
            Err(error) => {
                let damage =
                    error.downcast_ref().filter(|error: &&siltstone::Error| error.kind() == ErrorKind::Corruption);
                match damage.map(unopenable) {
                    Some(damage) => {
                        let damage = vec![damage];
                        Report { files: 0, bytes: 0, entries: 0, log_records: 0, damage, notes: Vec::new() }
                    }
                    None => return Err(error),
                }
            }
        };
        match self.telling.print(&report, text) {
            // The exit code tells of damage even where nobody reads of it.
            Err(error) if is_closed_pipe(&error) => {}
            printed => printed?,
        }
        Ok(ExitCode::from(if report.damage.is_empty() { 0 } else { 2 }))
    }

    fn check(&self, interrupt: &Interrupt) -> anyhow::Result<Report> {
        let lacks = |report: &Report| report.damage.iter().any(|damage| !Path::new(&damage.file).exists());
        self.store.reading_whole(TRIES, || self.read(interrupt), lacks)
    }

    fn read(&self, interrupt: &Interrupt) -> anyhow::Result<Report> {
        let db = self.store.open_to_read()?;
        let stats = db.stats();
        let mut meter = Meter::new("verify", "blocks", Some(stats.disk_bytes), self.telling.quiet);
        let report = db.verify_watched(&mut |blocks, bytes| {
            meter.update(blocks, bytes, bytes);
            !interrupt.is_set()
        });
        meter.clear();
        interrupt.check(|| "interrupted; not everything was read".to_owned())?;
        let report = report?;
        Ok(Report {
            files: report.files,
            bytes: report.bytes,
            entries: report.entries,
            log_records: stats.replayed_records,
            damage: report.damage.iter().map(told).collect(),
            notes: report.notes.iter().map(told).collect(),
        })
    }
}

fn told(damage: &siltstone::Damage) -> Damage {
    let keyspace = Some(&damage.keyspace).filter(|name| !name.is_empty());
    Damage {
        file: damage.file.display().to_string(),
        offset: damage.offset,
        what: damage.what.clone(),
        first_key_hex: keyspace.map(|_| hex(&damage.first_key)),
        last_key_hex: keyspace.map(|_| hex(&damage.last_key)),
        keys: keyspace.map_or_else(String::new, |name| {
            format!("; keyspace {name}, keys {} .. {}", visible(&damage.first_key, 40), visible(&damage.last_key, 40))
        }),
        keyspace: keyspace.cloned(),
    }
}

fn unopenable(error: &siltstone::Error) -> Damage {
    Damage {
        file: error.path().map(|path| path.display().to_string()).unwrap_or_default(),
        offset: error.offset(),
        what: error.what().to_owned(),
        keyspace: None,
        first_key_hex: None,
        last_key_hex: None,
        keys: "; the store cannot be opened".to_owned(),
    }
}

fn text(report: &Report) -> String {
    let line = |kind: &str, damage: &Damage| {
        let offset = damage.offset.map(|offset| format!(" at offset {offset}")).unwrap_or_default();
        format!("{kind}: {}{offset}: {}{}\n", damage.file, damage.what, damage.keys)
    };
    let mut out: String = report.damage.iter().map(|damage| line("damaged", damage)).collect();
    out.extend(report.notes.iter().map(|note| line("note", note)));
    out += &match report.damage.len() {
        0 => format!(
            "all is well{}: {}, {}, {}, and {} in the log\n",
            if report.notes.is_empty() { "" } else { " with the records" },
            plural(report.files, "table"),
            bytes(report.bytes),
            plural(report.entries, "record"),
            plural(report.log_records, "record")
        ),
        damaged => format!("{damaged} damaged{}\n", advice(report)),
    };
    out
}

/// What can be done about the damage.
fn advice(report: &Report) -> &'static str {
    let is_any = |of: fn(&Damage) -> bool| report.damage.iter().any(of);
    if is_any(|damage| damage.keyspace.is_some()) {
        "; restore from a checkpoint, or write what is well to a file: siltstone export STORE FILE --skip-damaged"
    } else if is_any(|damage| damage.file.ends_with(".log")) {
        "; restore from a checkpoint, or write what was stored before the damage to a file: siltstone export STORE FILE --set recovery=salvage"
    } else if is_any(|damage| !damage.keys.is_empty()) {
        "; restore from a checkpoint"
    } else {
        ""
    }
}
