//! `trace record STORE OUT`

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;
use siltstone::io::RealFs;
use siltstone::trace::{KeyHash, TraceOptions, TraceRequest};

use super::must_be_new;
use crate::output::{from_hex, print, print_json};
use crate::store::size;

/// Let a store record what it is asked for, from its next opening on.
#[derive(Args)]
#[command(after_long_help = "Examples:
  siltstone trace record shop /var/tmp/shop.trace
  siltstone trace record shop shop.trace --hash-keys --keep-prefix 4 --max-bytes 1GiB
  siltstone trace record shop                   is it asked for?
  siltstone trace record shop --stop

A store lives in the program that opens it, so this leaves a request in the store's folder, which whichever program \
opens the store next honours, and every one after it, until --stop. A program that has it open now goes on as it is \
(it can call Db::start_trace itself). Each opening that does something makes a file of its own: OUT, then OUT.2 and so \
on. Recording costs about 15 ns a put; if the disk is full the trace ends and the store goes on.

With --hash-keys keyed hashes stand in the trace instead of keys. Kept are their lengths, which of them are equal, and \
with --keep-prefix N the first N bytes, and so the order of keys that differ there. Lost is all other order. The \
secret is drawn from the system's random source, unless --secret gives one: with the same secret another trace has the \
same hashes. It stands in the request until --stop, and in no trace.")]
pub(super) struct Record {
    /// Folder of the store
    store: PathBuf,
    /// The trace; without it and without --stop: is one asked for?
    out: Option<PathBuf>,
    /// Write hashes instead of keys
    #[arg(long, requires = "out")]
    hash_keys: bool,
    /// Leave so many bytes from the front of each key as they are
    #[arg(long, value_name = "N", default_value_t = 0, requires = "hash_keys")]
    keep_prefix: u32,
    /// 16 bytes in hexadecimal that hashes depend on; default random ones
    #[arg(long, value_name = "HEX", requires = "hash_keys")]
    secret: Option<String>,
    /// End a trace at this size, e.g. 1GiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "out")]
    max_bytes: Option<u64>,
    /// Take the request back: openings from now on record nothing
    #[arg(long, conflicts_with_all = ["out", "hash_keys", "max_bytes"])]
    stop: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    size(text).filter(|size| *size > 0).ok_or_else(|| "expected a size, for example 1GiB".to_owned())
}

impl Record {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.store.join("SUPERBLOCK").is_file(),
            "there is no store at {}: check the path",
            self.store.display()
        );
        let asked = TraceRequest::find(&RealFs, &self.store)?;
        let told = match &self.out {
            _ if self.stop => match TraceRequest::withdraw(&RealFs, &self.store)? {
                true => {
                    "openings from now on record nothing; a program that has the store open records until it closes it"
                        .to_owned()
                }
                false => "no trace was asked for".to_owned(),
            },
            None => match &asked {
                Some(request) => format!("openings record to {}", request.path.display()),
                None => "no trace is asked for".to_owned(),
            },
            Some(out) => {
                let request = self.request(out)?;
                request.leave(&RealFs, &self.store)?;
                format!(
                    "the next opening records to {}; `siltstone trace record {} --stop` ends it",
                    request.path.display(),
                    self.store.display()
                )
            }
        };
        if self.json {
            let now = TraceRequest::find(&RealFs, &self.store)?;
            print_json(&serde_json::json!({
                "asked": now.is_some(),
                "path": now.as_ref().map(|request| request.path.display().to_string()),
                "hash_keys": now.as_ref().map(|request| request.options.hash_keys.is_some()),
                "max_bytes": now.as_ref().map(|request| request.options.max_bytes),
            }))?;
        } else {
            print(&(told + "\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn request(&self, out: &std::path::Path) -> anyhow::Result<TraceRequest> {
        must_be_new(out)?;
        // Other programs run elsewhere.
        let path = std::path::absolute(out).with_context(|| format!("cannot tell where {} is", out.display()))?;
        let folder = path.parent().map(std::path::Path::to_path_buf).unwrap_or_default();
        if !folder.is_dir() {
            bail!("there is no folder {}", folder.display());
        }
        ensure!(path.to_str().is_some(), "the path {} is not UTF-8, which a request must be", path.display());
        let hash_keys = match self.hash_keys {
            true => Some(KeyHash { secret: self.secret()?, keep_prefix: self.keep_prefix }),
            false => None,
        };
        Ok(TraceRequest { path, options: TraceOptions { hash_keys, max_bytes: self.max_bytes.unwrap_or(0) } })
    }

    fn secret(&self) -> anyhow::Result<[u8; 16]> {
        if let Some(hex) = &self.secret {
            let bytes = from_hex(hex).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
            return bytes.context("--secret: expected 32 hexadecimal digits");
        }
        let mut secret = [0; 16];
        let mut source = std::fs::File::open("/dev/urandom").context("the system has no random source")?;
        source.read_exact(&mut secret).context("cannot read the system's random source")?;
        Ok(secret)
    }
}
