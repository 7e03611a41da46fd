//! Progress on standard error: a bar on a terminal, else a line every two seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone_lab::num::{floor, per_second};
use siltstone_lab::report::{bytes, number};
use siltstone_lab::run::RunProgress;

use crate::output::plural;

const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows how far a command is.
pub(crate) struct Meter {
    verb: String,
    unit: &'static str,
    quiet: bool,
    bar: Option<ProgressBar>,
    start: Instant,
    last_line: Instant,
}

/// What was done when the work ended.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Done {
    /// Records that went through.
    pub(crate) records: u64,
    /// Bytes of their keys and values.
    pub(crate) bytes: u64,
    /// Seconds.
    pub(crate) seconds: f64,
    /// Records a second.
    pub(crate) records_per_s: f64,
    /// Millions of bytes a second.
    pub(crate) mb_per_s: f64,
}

impl Meter {
    /// A meter of `unit`s; `total` is in whatever [`update`](Meter::update)'s position is in.
    pub(crate) fn new(verb: &str, unit: &'static str, total: Option<u64>, quiet: bool) -> Meter {
        let now = Instant::now();
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(8));
            let template = match total {
                Some(_) => "{prefix} [{bar:28}] {percent:>3} %  {msg}  {eta} left",
                None => "{prefix} {spinner}  {msg}",
            };
            bar.set_style(
                ProgressStyle::with_template(template).expect("the templates are constants").progress_chars("=> "),
            );
            bar.set_prefix(verb.to_owned());
            bar
        });
        Meter { verb: verb.to_owned(), unit, quiet, bar, start: now, last_line: now }
    }

    /// `records` with `bytes` went through; the input is at `position`.
    pub(crate) fn update(&mut self, records: u64, bytes: u64, position: u64) {
        if self.quiet {
            return;
        }
        let now = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(self.text(&self.done(records, bytes)));
        } else if now - self.last_line >= LINE_EVERY {
            self.last_line = now;
            line(&format!("{}: {}", self.verb, self.text(&self.done(records, bytes))));
        }
    }

    /// Ends the display and tells the totals.
    pub(crate) fn finish(self, records: u64, bytes: u64) -> Done {
        let done = self.done(records, bytes);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if !self.quiet {
            line(&format!("{}: {} in {:.1} s", self.verb, self.text(&done), done.seconds));
        }
        done
    }

    /// Ends the display without a word.
    pub(crate) fn clear(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn done(&self, records: u64, bytes: u64) -> Done {
        let seconds = self.start.elapsed().as_secs_f64();
        Done {
            records,
            bytes,
            seconds,
            records_per_s: per_second(records, seconds),
            mb_per_s: per_second(bytes, seconds) / 1e6,
        }
    }

    fn text(&self, done: &Done) -> String {
        let one = self.unit.strip_suffix('s').filter(|_| done.records == 1);
        let unit = one.unwrap_or(self.unit);
        let mut text = format!("{} {unit}, {}/s", done.records, number(done.records_per_s));
        if done.bytes > 0 {
            text += &format!(", {}, {}/s", bytes(done.bytes), bytes(floor(done.mb_per_s * 1e6)));
        }
        text
    }
}

/// Shows how far several trials are.
pub(crate) struct RunMeter {
    verb: String,
    quiet: bool,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl RunMeter {
    /// A meter whose lines begin with `verb`.
    pub(crate) fn new(verb: &str, quiet: bool) -> RunMeter {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(8));
            let style = ProgressStyle::with_template("{prefix} [{bar:28}] {percent:>3} %  {wide_msg}");
            bar.set_style(style.expect("the template is a constant").progress_chars("=> "));
            bar.set_prefix(verb.to_owned());
            bar
        });
        RunMeter { verb: verb.to_owned(), quiet, bar, last_line: Instant::now() }
    }

    /// Shows where the trials are.
    pub(crate) fn update(&mut self, progress: &RunProgress) {
        let now = Instant::now();
        if self.quiet || (self.bar.is_none() && now - self.last_line < LINE_EVERY) {
            return;
        }
        let mut text = format!("{} of {}", progress.finished, plural(progress.trials, "trial"));
        if let Some(left) = progress.left {
            text += &format!(", about {} left", about(left));
        }
        if !progress.doing.is_empty() {
            text += &format!(": {}", progress.doing.join(", "));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(floor(progress.share * 1e3));
            bar.set_message(text);
        } else {
            self.last_line = now;
            line(&format!("{}: {} %, {text}", self.verb, floor(progress.share * 100.0)));
        }
    }

    /// Ends the display.
    pub(crate) fn clear(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Time for people, rounded: `42 s`, `3 min`, `2 h`.
fn about(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..90 => format!("{s} s"),
        s @ 90..5400 => format!("{} min", s.div_ceil(60)),
        s => format!("{} h", s.div_ceil(3600)),
    }
}

/// A line on standard error; where nobody listens, nobody is told.
pub(crate) fn line(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
