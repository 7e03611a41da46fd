//! `verify STORE`

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use siltstone::ErrorKind;
use siltstone_lab::report::bytes;

use crate::output::{hex, print, print_json, visible};
use crate::store::{StoreArgs, TRIES};

/// Check every checksum and every law of the tree; nothing is changed.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone verify shop
  siltstone verify shop --json | jq '.damage[].file'

Every damaged file is named, with the offset and the range of keys that may be lost. Exit code 0: all is well; 2: damage.")]
pub(crate) struct Verify {
    #[command(flatten)]
    store: StoreArgs,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    files: u64,
    bytes: u64,
    entries: u64,
    /// Records of the log; they were checked when the store was opened.
    log_records: u64,
    damage: Vec<Damage>,
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
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let report = match self.check() {
            Ok(report) => report,
            // A store that does not even open is damaged, too: say so in the same form.
            Err(error) => {
                let damage =
                    error.downcast_ref().filter(|error: &&siltstone::Error| error.kind() == ErrorKind::Corruption);
                match damage.map(unopenable) {
                    Some(damage) => Report { files: 0, bytes: 0, entries: 0, log_records: 0, damage: vec![damage] },
                    None => return Err(error),
                }
            }
        };
        if self.json {
            print_json(&report)?;
        } else {
            print(&text(&report))?;
        }
        Ok(ExitCode::from(if report.damage.is_empty() { 0 } else { 2 }))
    }

    fn check(&self) -> anyhow::Result<Report> {
        let lacks = |report: &Report| report.damage.iter().any(|damage| !Path::new(&damage.file).exists());
        self.store.reading_whole(TRIES, || self.read(), lacks)
    }

    fn read(&self) -> anyhow::Result<Report> {
        let db = self.store.open_to_read()?;
        let report = db.verify()?;
        let damage = report.damage.iter().map(|damage| Damage {
            file: damage.file.display().to_string(),
            offset: damage.offset,
            what: damage.what.clone(),
            keyspace: Some(damage.keyspace.clone()),
            first_key_hex: Some(hex(&damage.first_key)),
            last_key_hex: Some(hex(&damage.last_key)),
            keys: format!(
                "; keyspace {}, keys {} .. {}",
                damage.keyspace,
                visible(&damage.first_key, 40),
                visible(&damage.last_key, 40)
            ),
        });
        Ok(Report {
            files: report.files,
            bytes: report.bytes,
            entries: report.entries,
            log_records: db.stats().replayed_records,
            damage: damage.collect(),
        })
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
    if report.damage.is_empty() {
        return format!(
            "all is well: {} tables, {}, {} records, and {} records in the log\n",
            report.files,
            bytes(report.bytes),
            report.entries,
            report.log_records
        );
    }
    let mut out = String::new();
    for damage in &report.damage {
        let offset = damage.offset.map(|offset| format!(" at offset {offset}")).unwrap_or_default();
        out += &format!("damaged: {}{offset}: {}{}\n", damage.file, damage.what, damage.keys);
    }
    out += &format!("{} damaged; restore from a checkpoint, or export what can be read\n", report.damage.len());
    out
}
