//! `trace record|show|replay|fit|import|export`

mod record;
mod replay;

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use siltstone_lab::num::floor;
use siltstone_lab::report::number;
use siltstone_lab::trace::fit::{Fit as Fitted, fit};
use siltstone_lab::trace::{Show as Ask, Source, TraceShow, export, import, show};

use super::args::Telling;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::output::{Cell, Output, plural, print, print_json, text_table};
use crate::progress::{Meter, line};

/// Record what a store is asked for; show it, do it again, describe it as a workload.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone trace record shop shop.trace --hash-keys   from its next opening on, whichever program opens it
  siltstone trace record shop --stop
  siltstone trace show shop.trace
  siltstone trace replay shop.trace other-store --speed 2
  siltstone trace fit shop.trace --out shop.toml       then: siltstone run ./shop.toml --strategy leveling,tiering
  siltstone trace import workload.txt workload.trace
  siltstone trace export shop.trace workload.txt

A trace says which operation came when, on which key, and how long the value was; it holds no value. A text has one \
operation a line, as the K-V workload generator writes it: I key value, U key value, D key, R start end (delete a \
range), Q key, S start end (read a range); ranges end before `end`. `show`, `replay` and `fit` take either.")]
pub(crate) struct Trace {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// Let a store record what it is asked for, from its next opening on
    Record(record::Record),
    /// Print what is in a trace
    Show(Show),
    /// Do what a trace says again, in another store
    Replay(replay::Replay),
    /// Describe a trace as a workload spec
    Fit(Fit),
    /// Make a trace of a text
    Import(Import),
    /// Write a trace as text
    Export(Export),
}

/// Print what is in a trace.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone trace show shop.trace
  siltstone trace show shop.trace --first 100 --hex
  siltstone trace show workload.txt --json

A trace that breaks off (its program died, or still writes) is shown up to there. Of a damaged one what comes before \
the damage is shown; the command then fails.")]
struct Show {
    /// A trace or a text
    file: PathBuf,
    /// So many entries from its begin: operations, the names of keyspaces, and how many operations were lost
    #[arg(long, default_value_t = 10)]
    first: u64,
    /// Keys as hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    telling: Telling,
}

/// Describe a trace as a workload spec.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print everything that was fitted as JSON, the spec included")))]
#[command(after_long_help = "Examples:
  siltstone trace fit shop.trace
  siltstone trace fit shop.trace --out shop.toml
  siltstone trace fit shop.trace --json

Fitted are: the mix of operations and where it shifts (one phase each), keys and their lengths, which keys each kind \
chooses (uniform, zipf, latest, hotspot, sequential), bytes of values, records of scans, the share of lookups that \
find nothing, the rate and burstiness of arrivals. Each law comes with its distance from what was seen: the largest \
difference of the two distribution functions, 0 for equal ones; above 0.05 it fits badly. What a spec cannot say is \
noted.

Reads the file twice and holds 16 bytes or so for each different key.")]
struct Fit {
    /// A trace or a text
    file: PathBuf,
    /// Write the spec to this new file; `-`, or without this, to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Name of the workload; default the file's
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    telling: Telling,
}

/// Make a trace of a text.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print the totals as JSON")))]
#[command(after_long_help = "Examples:
  siltstone trace import workload.txt workload.trace

Values are not kept, only their lengths; `trace replay` takes the text itself as well, with its values. The trace has \
no times.")]
struct Import {
    /// A text
    file: PathBuf,
    /// The new trace
    out: PathBuf,
    #[command(flatten)]
    telling: Telling,
}

/// Write a trace as text.
#[derive(Args)]
#[command(mut_arg("json", |arg| arg.help("Print the totals as JSON")))]
#[command(after_long_help = "Examples:
  siltstone trace export shop.trace workload.txt
  siltstone trace export shop.trace workload.txt --hex    keys that hold blanks or any bytes

The first put of a key in the trace is an `I`, any other a `U`; values are letters of the recorded length. Times, \
batches and keyspaces are lost; flushes, compactions, ingestions and ranges without both bounds have no line and are \
counted.")]
struct Export {
    /// A trace
    file: PathBuf,
    /// The new text
    out: PathBuf,
    /// Keys as hexadecimal digits
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    telling: Telling,
}

impl Trace {
    pub(crate) fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        match &self.command {
            Sub::Record(command) => command.run(),
            Sub::Show(command) => command.run(interrupt),
            Sub::Replay(command) => command.run(interrupt),
            Sub::Fit(command) => command.run(interrupt),
            Sub::Import(command) => command.run(interrupt),
            Sub::Export(command) => command.run(interrupt),
        }
    }
}

impl Show {
    fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let mut source = Source::open(&self.file)?;
        let mut meter = Meter::new("show", "operations", Some(source.progress().0), self.telling.quiet);
        let ask = Ask { first: self.first, hex: self.hex };
        let shown = show(&mut source, ask, &mut |done, read| {
            meter.update(done, 0, read);
            !interrupt.is_set()
        });
        meter.clear();
        let shown = shown?;
        self.telling.print(&shown, text)?;
        if let Some(error) = &shown.error {
            anyhow::bail!("{error}");
        }
        ensure!(!interrupt.is_set(), Interrupted::leaving("the rest of the file was not read"));
        Ok(ExitCode::SUCCESS)
    }
}

fn text(shown: &TraceShow) -> String {
    let mut out = match shown.elapsed_s {
        Some(elapsed_s) => format!(
            "{}: {} in {elapsed_s:.3} s, {}/s; {}\n",
            shown.form,
            plural(shown.operations, "operation"),
            number(shown.ops_per_s),
            shown.end
        ),
        None => format!("{}: {}, nobody knows when\n", shown.form, plural(shown.operations, "operation")),
    };
    if shown.lost > 0 {
        out += &format!("{} operations came faster than they could be written and are missing\n", shown.lost);
    }
    match shown.hashed_beyond {
        Some(0) => out += "keys are hashes\n",
        Some(kept) => out += &format!("keys are hashes but for their first {kept} bytes\n"),
        None => {}
    }
    if let Some(share) = shown.empty_lookups {
        out += &format!("{:.1} % of the lookups found nothing\n", 100.0 * share);
    }
    let rows: Vec<Vec<Cell>> = (shown.kinds.iter())
        .map(|(name, kind)| {
            let cells = [
                (*name).to_owned(),
                kind.count.to_string(),
                kind.keys.to_string(),
                format!("{:.1}", kind.key_bytes),
                format!("{:.1}", kind.value_bytes),
            ];
            cells.map(Cell::from).into()
        })
        .collect();
    out += &format!("\n{}", text_table(&["kind", "operations", "keys", "key bytes", "value bytes"], &rows));
    let rows: Vec<Vec<Cell>> = (shown.keyspaces.iter())
        .map(|space| {
            [space.name.clone(), space.keys.to_string(), space.distinct_keys.to_string()].map(Cell::from).into()
        })
        .collect();
    out += &format!("\n{}\n", text_table(&["keyspace", "keys", "different keys"], &rows));
    shown.first.iter().for_each(|first| out += &format!("{first}\n"));
    out
}

impl Fit {
    fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let out = self.out.as_deref().filter(|out| *out != Path::new("-"));
        if let Some(out) = out {
            must_be_new(out)?;
        }
        let stem = self.file.file_stem().map_or_else(|| "trace".into(), |stem| stem.to_string_lossy().into_owned());
        let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.+".contains(c) { c } else { '-' };
        let name: String = self.name.as_deref().unwrap_or(&stem).chars().map(allowed).collect();
        let mut meter = Meter::new("fit", "operations", Some(1000), self.telling.quiet);
        let fitted = fit(&name, &mut || Source::open(&self.file), &mut |done, share| {
            meter.update(done, 0, floor(share * 1e3));
            !interrupt.is_set()
        });
        meter.clear();
        interrupt.check(|| "interrupted; nothing was written".to_owned())?;
        let fitted = fitted?;
        if let Some(out) = out {
            std::fs::write(out, &fitted.spec).with_context(|| format!("cannot write {}", out.display()))?;
        }
        match (out, self.telling.json) {
            (_, true) => print_json(&fitted)?,
            (None, false) => print(&fitted.spec)?,
            (Some(out), false) => print(&Self::told(&fitted, out))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// How well everything fits, in lines.
    fn told(fitted: &Fitted, out: &Path) -> String {
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        let mut row = |what: String, law: String, distance: f64, is_good: bool| {
            let verdict = if is_good { "well" } else { "badly" };
            rows.push([what, law, format!("{distance:.3}"), verdict.to_owned()].map(Cell::from).into());
        };
        let plain = |law: &dyn erased::Law| law.spell();
        row(
            "bytes of keys".to_owned(),
            plain(&fitted.key_bytes.law),
            fitted.key_bytes.distance,
            fitted.key_bytes.is_good,
        );
        if let Some(value) = &fitted.value_bytes {
            row("bytes of values".to_owned(), plain(&value.law), value.distance, value.is_good);
        }
        for phase in &fitted.phases {
            for op in &phase.mix {
                let what = format!("{}: {:.1} % {}", phase.name, 100.0 * op.share, op.kind);
                if let Some(access) = &op.access {
                    row(what.clone(), plain(&access.law), access.distance, access.is_good);
                }
                if let Some(length) = &op.length {
                    row(format!("{what}, length"), plain(&length.law), length.distance, length.is_good);
                }
            }
        }
        let mut text = text_table(&["what", "law", "distance", "fits"], &rows);
        fitted.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
        text + &format!("\nthe spec is in {}: siltstone run {}\n", out.display(), out.display())
    }
}

/// Laws as their JSON without marks: `zipf theta 0.990`.
mod erased {
    use serde::Serialize;

    pub(super) trait Law {
        fn spell(&self) -> String;
    }

    impl<T: Serialize> Law for T {
        fn spell(&self) -> String {
            let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(self) else { return String::new() };
            let mut text = fields.get("kind").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
            for (name, value) in fields.iter().filter(|(name, _)| *name != "kind") {
                match value {
                    serde_json::Value::Array(of) => text += &format!(" {name} {} weights", of.len()),
                    value if value.is_f64() => text += &format!(" {name} {:.3}", value.as_f64().unwrap_or(0.0)),
                    value => text += &format!(" {name} {value}"),
                }
            }
            text
        }
    }
}

impl Import {
    fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let mut source = Source::open(&self.file)?;
        ensure!(matches!(source, Source::Text(_)), "{} is a trace already", self.file.display());
        let mut meter = Meter::new("import", "operations", Some(source.progress().0), self.telling.quiet);
        let done = import(&mut source, &self.out, &mut |done, read| {
            meter.update(done, 0, read);
            !interrupt.is_set()
        });
        meter.clear();
        let done = done?;
        if done.is_partial {
            std::fs::remove_file(&self.out).with_context(|| format!("cannot remove {}", self.out.display()))?;
            return Err(Interrupted::leaving("no trace was written").into());
        }
        if self.telling.json {
            print_json(&done)?;
        } else {
            line(&format!("{} in {}", plural(done.operations, "operation"), self.out.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Export {
    fn run(&self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let to_stream = self.out == Path::new("-");
        ensure!(
            !(to_stream && self.telling.json),
            "--json prints totals to standard output, where the text goes: give a file"
        );
        let mut source = Source::open(&self.file)?;
        let mut meter = Meter::new("export", "operations", Some(source.progress().0), self.telling.quiet || to_stream);
        let mut watch = |done, read| {
            meter.update(done, 0, read);
            !interrupt.is_set()
        };
        let done = if to_stream {
            export(&mut source, Output::new(), self.hex, &mut watch)
        } else {
            must_be_new(&self.out)?;
            // It appears when it is complete.
            let folder = self.out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let file = tempfile::NamedTempFile::new_in(folder)
                .with_context(|| format!("cannot write to {}", folder.display()))?;
            let done = export(&mut source, BufWriter::with_capacity(256 << 10, &file), self.hex, &mut watch);
            if done.as_ref().is_ok_and(|done| !done.is_partial) {
                file.persist(&self.out).with_context(|| format!("cannot write {}", self.out.display()))?;
            }
            done
        };
        meter.clear();
        let done = done?;
        if done.is_partial {
            return Err(Interrupted::leaving("no text was written").into());
        }
        if done.left_out > 0 {
            line(&format!("note: {} operations have no line in a text and are left out", done.left_out));
        }
        if done.other_keyspaces > 0 {
            line(&format!(
                "note: {} operations of other keyspaces are among those of the default one",
                done.other_keyspaces
            ));
        }
        if self.telling.json {
            print_json(&done)?;
        } else if !to_stream {
            line(&format!("{} in {}", plural(done.operations, "operation"), self.out.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn must_be_new(path: &Path) -> anyhow::Result<()> {
    ensure!(!path.exists(), "{} is there already: choose another name, or remove it", path.display());
    Ok(())
}
