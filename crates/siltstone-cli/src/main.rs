//! The `siltstone` command: one module a command, each parses its arguments, calls the library and prints.
//!
//! | room | what |
//! | --- | --- |
//! | `commands` | the commands |
//! | `store` | arguments that commands share, opening a store |
//! | `format` | TSV, CSV and JSON lines, plain or compressed, in both directions |
//! | `output`, `progress` | standard output and the progress on standard error |
//! | `failure`, `interrupt` | one line for an error, a clean end upon Ctrl-C, SIGTERM and SIGHUP |
//!
//! Exit codes: 0 done; 1 `get` found no such key; 2 an error or damage; 130 ended by Ctrl-C, SIGTERM or SIGHUP.

mod commands;
mod failure;
mod format;
mod interrupt;
mod output;
mod progress;
mod store;

use std::process::ExitCode;

use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser};

/// An embedded key-value store in which compaction is not a black box.
///
/// A store is a folder. Keys and values are bytes; on the command line they are UTF-8, or hexadecimal with --hex.
#[derive(Parser)]
#[command(name = "siltstone", version, max_term_width = 110, after_long_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

const EXAMPLES: &str = "\
Examples:
  siltstone put shop apple red            store a record (makes the folder `shop`)
  siltstone get shop apple                print its value
  siltstone import shop words.tsv.gz      load a file: key, tab, value
  siltstone scan shop --prefix app        list records in key order
  siltstone inspect shop                  draw the tree
  siltstone compare words.tsv             which compaction strategy suits this data?

Exit codes: 0 done, 1 no such key, 2 error or damage, 130 interrupted (Ctrl-C, SIGTERM, SIGHUP).";

/// A number below 0 is a value, so that what is wrong with it can be told; no option is called by a digit.
fn with_negative_numbers(command: Command) -> Command {
    let takes_numbers = |arg: Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(takes_numbers).mut_subcommands(with_negative_numbers)
}

fn main() -> ExitCode {
    let matches = with_negative_numbers(Arguments::command()).try_get_matches();
    let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches)).unwrap_or_else(|error| {
        if error.kind() == clap::error::ErrorKind::InvalidUtf8 {
            progress::line(
                "siltstone: an argument is not UTF-8: write keys and values of any bytes in hexadecimal, with --hex",
            );
            std::process::exit(2);
        }
        error.exit()
    });
    let interrupt = interrupt::Interrupt::install();
    match arguments.command.run(&interrupt) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
