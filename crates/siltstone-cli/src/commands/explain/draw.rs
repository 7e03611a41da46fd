//! Decisions and rules as text.

use std::fmt::Write as _;
use std::sync::Arc;

use siltstone::compaction::decision::MAX_INPUT_FILES;
use siltstone::compaction::{Action, Decision, Ended, Ending, Reason, Verdict};
use siltstone::{Keyspace, Pending, PendingRule};
use siltstone_lab::report::{bytes, duration_ns};

/// A table of decisions, and the whole record of the last, or of all.
pub(super) fn decisions(keyspace: &Keyspace, kept: usize, shown: &[Arc<Decision>], all_details: bool) -> String {
    let strategy = keyspace.stats().strategy;
    let mut out = format!("keyspace {}, strategy {strategy}: {} of {kept} decisions\n", keyspace.name(), shown.len());
    let Some(last) = shown.last() else {
        if kept == 0 {
            out +=
                "Nothing was compacted since records are kept. What is due next: siltstone explain STORE --pending\n";
        }
        return out;
    };
    let titles = ["job", "chosen (UTC)", "what", "why", "read", "wrote", "took", "ended"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(titles).chain(shown.iter().map(|decision| row(decision))).collect();
    out += &columns(&rows, &[false, true, true, true, false, false, false, true]);
    let detailed = if all_details { shown } else { std::slice::from_ref(last) };
    for decision in detailed {
        out += "\n";
        out += &details(decision);
    }
    out
}

fn row(decision: &Decision) -> [String; 8] {
    let ended = decision.ended.as_ref();
    let cost = |cost: fn(&Ended) -> String| ended.map_or_else(String::new, cost);
    [
        decision.job.to_string(),
        utc(decision.started_ms),
        what(decision),
        decision.record.to_string(),
        cost(|ended| bytes(ended.bytes_read)),
        cost(|ended| bytes(ended.bytes_written)),
        cost(|ended| duration_ns(ended.took_ns)),
        ended.map_or_else(|| "runs".to_owned(), |ended| ending(&ended.ending).to_owned()),
    ]
}

/// `merge L0 -> L1`, `move 3 files L0 -> L1`
fn what(decision: &Decision) -> String {
    let (from, to) = (decision.from_level, decision.to_level);
    match decision.action {
        Action::Merge => format!("merge L{from} -> L{to}"),
        Action::Move => format!("move {} L{from} -> L{to}", files(decision.input_files())),
        Action::Drop => format!("drop {} of L{from}", files(decision.input_files())),
    }
}

fn files(n: u64) -> String {
    if n == 1 { "1 file".to_owned() } else { format!("{n} files") }
}

fn ending(ending: &Ending) -> &'static str {
    match ending {
        Ending::Done => "done",
        Ending::Cancelled(_) => "cancelled",
        Ending::Failed(_) => "failed",
    }
}

/// The whole record.
fn details(decision: &Decision) -> String {
    let record = &decision.record;
    let mut out = match decision.job {
        0 => format!("next: {} run {}\n", what(decision), decision.to_run),
        job => format!("job {job}: {} run {}\n", what(decision), decision.to_run),
    };
    let mut line = |title: &str, text: &str| {
        let _ = writeln!(out, "  {title:<11}{text}");
    };
    match record.reason {
        Reason::Manual => line("why", "a user asked for it"),
        _ => line(
            "why",
            &format!(
                "{}: {} is {}, fires at {}",
                by(&record.reason),
                record.trigger,
                figure(record.value),
                figure(record.threshold)
            ),
        ),
    }
    for (n, input) in decision.inputs.iter().enumerate() {
        let ids: Vec<String> = input.ids.iter().map(u64::to_string).collect();
        let more = if input.files > MAX_INPUT_FILES as u64 { " ..." } else { "" };
        let place = format!("L{} run {}: {}, {}", input.level, input.run, files(input.files), bytes(input.bytes));
        line(if n == 0 { "inputs" } else { "" }, &format!("{place} ({}{more})", ids.join(" ")));
    }
    let time = decision.predicted_ns.map_or_else(String::new, |ns| format!(", in {}", duration_ns(ns)));
    let predicted = format!("read {}, write at most {}{time}", bytes(record.read_bytes), bytes(record.write_bytes));
    line("predicted", &predicted);
    if let Some(ended) = &decision.ended {
        cost(ended, &mut line);
    }
    if record.candidates_total > 0 {
        let n = record.candidates_total;
        line("candidates", &format!("{n}, the best of them (the smallest score goes first):"));
        for candidate in &record.candidates {
            let scores: Vec<_> = candidate.scores.iter().map(|score| figure(*score)).collect();
            let mark = match (candidate.chosen, candidate.blocked) {
                (true, _) => "   chosen",
                (_, true) => "   in the way of a running job",
                _ => "",
            };
            let what = match candidate.runs {
                0 => format!("file {:<6}", candidate.file.0),
                1 => format!("run of file {:<6}", candidate.file.0),
                runs => format!("{runs} runs from file {:<6}", candidate.file.0),
            };
            line("", &format!("{what} {}{mark}", scores.join("  ")));
        }
    }
    out
}

fn cost(ended: &Ended, line: &mut dyn FnMut(&str, &str)) {
    let rest = match ended.spans {
        1 => format!("waiting {}", duration_ns(ended.took_ns.saturating_sub(ended.cpu_ns + ended.io_ns))),
        n => format!("by all lanes that shared its {n} spans"),
    };
    let (took, cpu, io) = (duration_ns(ended.took_ns), duration_ns(ended.cpu_ns), duration_ns(ended.io_ns));
    let kept = match ended.ending {
        Ending::Done => format!("in {}", files(ended.files_out)),
        _ => "to no avail".to_owned(),
    };
    let linked = match ended.bytes_linked {
        0 => String::new(),
        n => format!(", linked {}", bytes(n)),
    };
    let moved = format!("read {}, wrote {}{linked} {kept}", bytes(ended.bytes_read), bytes(ended.bytes_written));
    line("actual", &format!("{moved}, {took}: computing {cpu}, file calls {io}, {rest}"));
    if ended.entries_read > 0 {
        let dropped =
            format!("{} old versions and {} tombstones dropped", ended.dropped_versions, ended.dropped_tombstones);
        line("records", &format!("{} read, {} written, {dropped}", ended.entries_read, ended.entries_written));
    }
    match &ended.ending {
        Ending::Done => {}
        Ending::Cancelled(why) => line("cancelled", why),
        Ending::Failed(why) => line("failed", why),
    }
}

fn by(reason: &Reason) -> String {
    match reason {
        Reason::Rule(n) => format!("rule {n}"),
        Reason::Layout => "layout".to_owned(),
        Reason::Deadline => "delete_by".to_owned(),
        Reason::Manual => "a user".to_owned(),
        Reason::Policy(why) => why.clone(),
    }
}

/// What is next, or why nothing is, and how every rule stands.
pub(super) fn pending(keyspace: &Keyspace, pending: &Pending) -> String {
    let mut out =
        format!("keyspace {}, strategy {}, scheduler {}\n", keyspace.name(), pending.strategy, pending.scheduler);
    for decision in &pending.running {
        let _ = writeln!(out, "runs: job {}, {}", decision.job, what(decision));
    }
    for merge in &pending.merges {
        let (left, all) = (bytes(merge.left_bytes), bytes(merge.input_bytes));
        let class = merge.class.name();
        let _ = writeln!(out, "  job {} ({class}, {left} of {all} left) {}", merge.job, merge.why);
    }
    match (&pending.next, &pending.refused) {
        (Some(next), _) => out += &details(next),
        (None, Some(law)) => {
            let _ = writeln!(out, "nothing can begin: the policy's plan is refused, {law}");
        }
        (None, None) => {
            let _ = writeln!(out, "{}", nothing(pending));
        }
    }
    if pending.rules.is_empty() {
        out += "the policy does not explain its rules\n";
        return out;
    }
    out += "\n";
    let titles = ["who", "trigger", "level", "value", "fires at", "now"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(titles).chain(pending.rules.iter().map(rule)).collect();
    out += &columns(&rows, &[true, true, true, false, false, true]);
    out
}

fn nothing(pending: &Pending) -> String {
    let firing: Vec<_> = pending.rules.iter().filter(|rule| rule.appraisal.verdict != Verdict::Quiet).collect();
    if firing.iter().any(|rule| rule.appraisal.verdict != Verdict::Nothing) {
        return "nothing can begin: what fires has to wait".to_owned();
    }
    if !firing.is_empty() {
        return "nothing is due: what fires finds nothing to do".to_owned();
    }
    let measured = pending.rules.iter().filter(|rule| rule.appraisal.value.is_some());
    match measured.max_by(|a, b| a.appraisal.score().total_cmp(&b.appraisal.score())) {
        Some(PendingRule { appraisal, .. }) => format!(
            "nothing is due: no rule fires; the nearest is {} of {} on L{} at {} of {}",
            appraisal.trigger,
            by(&appraisal.reason),
            appraisal.level.unwrap_or_default(),
            figure(appraisal.value.unwrap_or_default()),
            figure(appraisal.threshold.unwrap_or_default())
        ),
        None => "nothing is due: the tree holds nothing that a rule looks at".to_owned(),
    }
}

fn rule(rule: &PendingRule) -> [String; 6] {
    let appraisal = &rule.appraisal;
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    let now = match &appraisal.verdict {
        Verdict::Quiet if appraisal.value.is_none() => "nothing to measure".to_owned(),
        Verdict::Quiet => "quiet".to_owned(),
        Verdict::Next => "fires: next".to_owned(),
        Verdict::Later => "fires: later".to_owned(),
        Verdict::Blocked(_) if rule.waits_for.is_empty() => {
            "fires: its files are held for what waits before it".to_owned()
        }
        Verdict::Blocked(_) => {
            let jobs: Vec<_> = rule.waits_for.iter().map(u64::to_string).collect();
            format!("fires: waits for job {}", jobs.join(", "))
        }
        Verdict::Nothing => "fires: finds nothing to do".to_owned(),
    };
    [
        by(&appraisal.reason),
        appraisal.trigger.clone(),
        appraisal.level.map_or_else(|| "-".to_owned(), |level| format!("L{level}")),
        shown(appraisal.value),
        shown(appraisal.threshold),
        now,
    ]
}

/// A trigger's value or a score.
fn figure(value: f64) -> String {
    if value.is_finite() { siltstone_lab::report::number(value) } else { "none".to_owned() }
}

/// Rows with two blanks between the columns.
fn columns<const N: usize>(rows: &[[String; N]], left: &[bool; N]) -> String {
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in rows {
        let cell = |n: usize| {
            let (text, width) = (&row[n], widths[n]);
            if left[n] { format!("{text:<width$}") } else { format!("{text:>width$}") }
        };
        let line: Vec<_> = (0..N).map(cell).collect();
        let _ = writeln!(out, "{}", line.join("  ").trim_end());
    }
    out
}

/// `2026-11-22 00:40:01`
fn utc(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// The date so many days after 1 January 1970, in the Gregorian calendar. Years begin in March here, so that the leap day is a year's last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 1 March of the year 0
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let first = (153 * month + 2) / 5;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next, month, day - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_199_000), "2024-02-29 23:59:59");
        assert_eq!(utc(1_709_251_200_000), "2024-03-01 00:00:00");
        assert_eq!(utc(4_102_444_799_999), "2099-12-31 23:59:59");
    }
}
