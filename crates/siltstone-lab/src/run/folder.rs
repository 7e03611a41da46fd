//! The results folder: what is finished appears by one rename, complete or not at all.
//!
//! A trial is written in `.NAME.partial` beside its place. The folder is locked meanwhile, and the lock ends with the process: whoever finds a
//! folder without a lock may throw it away and begin anew. After the rename nothing in it changes any more.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::question::{Question, Task};

/// A folder of results, held by this process alone.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    question: Question,
    _lock: File,
}

impl Results {
    /// Makes a folder for `question`.
    ///
    /// # Errors
    /// If there is something in it already, with what to do about that.
    pub fn create(folder: &Path, question: Question) -> anyhow::Result<Results> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        if folder.join(QUESTION).exists() {
            bail!("{} holds results already: go on with --resume, or name another folder with --out", folder.display());
        }
        let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
        ensure!(is_empty, "the folder {} is not empty: name another one with --out", folder.display());
        let lock = lock(folder)?;
        write_file(&folder.join(QUESTION), &(serde_json::to_string_pretty(&question)? + "\n"))?;
        Results::with(folder, question, lock)
    }

    /// Goes on with what is in a folder. `question`, where given, must be what the folder was made for.
    ///
    /// # Errors
    /// If it holds no results, another format's, or another question's, with what differs.
    pub fn resume(folder: &Path, question: Option<&Question>) -> anyhow::Result<Results> {
        let found = read_question(folder)?;
        if let Some(question) = question {
            let differences = question.differences(&found);
            ensure!(
                differences.is_empty(),
                "{} answers another question: {}: name another folder with --out",
                folder.display(),
                differences.join("; ")
            );
        }
        let lock = lock(folder)?;
        Results::with(folder, found, lock)
    }

    fn with(folder: &Path, question: Question, lock: File) -> anyhow::Result<Results> {
        fs::create_dir_all(folder.join(TRIALS)).context("cannot make the folder `trials`")?;
        Ok(Results { folder: folder.to_owned(), question, _lock: lock })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it answers.
    pub fn question(&self) -> &Question {
        &self.question
    }

    /// The place of a trial.
    pub fn trial(&self, task: &Task) -> PathBuf {
        self.folder.join(TRIALS).join(task.name())
    }

    /// Writes the tasks of all trials down, for whoever starts them. Answers with each task's file and the place of its trial.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_tasks(&self) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
        let folder = self.folder.join(TASKS);
        fs::create_dir_all(&folder).context("cannot make the folder `tasks`")?;
        let write = |task: &Task| {
            let path = folder.join(format!("{}.json", task.name()));
            write_file(&path, &(serde_json::to_string_pretty(task)? + "\n"))?;
            Ok((path, self.trial(task)))
        };
        self.question.tasks()?.iter().map(write).collect()
    }

    /// The trials that are not finished.
    ///
    /// # Errors
    /// If what stands in the place of one belongs to another task.
    pub fn open_tasks(&self) -> anyhow::Result<Vec<Task>> {
        let mut open = Vec::new();
        for task in self.question.tasks()? {
            if !is_finished(&self.trial(&task), &task)? {
                open.push(task);
            }
        }
        Ok(open)
    }

    /// Checks that this build, made from `commit`, may go on: what is open must be for it, what is finished any build may gather.
    ///
    /// # Errors
    /// If a trial is open that is for another build, with both.
    pub fn check_build(&self, commit: &str) -> anyhow::Result<()> {
        let Some(task) = self.open_tasks()?.into_iter().next() else { return Ok(()) };
        task.check_build(commit)
            .with_context(|| format!("{} is not finished: trial {} is open", self.folder.display(), task.name()))
    }
}

/// Of a results folder.
pub(super) const QUESTION: &str = "run.json";
const TRIALS: &str = "trials";
const TASKS: &str = "tasks";

/// Files of a trial's folder.
pub(super) const TASK: &str = "trial.json";
pub(super) const ROW: &str = "row.json";
pub(super) const WINDOWS: &str = "windows.jsonl";
pub(super) const MACHINE: &str = "machine.json";

/// What a folder was made for.
///
/// # Errors
/// If it holds no results, or another format's.
pub fn read_question(folder: &Path) -> anyhow::Result<Question> {
    let path = folder.join(QUESTION);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("{} holds no results: there is no {QUESTION} in it", folder.display())
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    Question::parse(&text).with_context(|| path.display().to_string())
}

/// Whether the folder `place` holds the finished trial of `task`.
///
/// # Errors
/// If it holds something else.
pub(super) fn is_finished(place: &Path, task: &Task) -> anyhow::Result<bool> {
    if !place.exists() {
        return Ok(false);
    }
    let path = place.join(TASK);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{} is in the way: it holds no trial; remove it", place.display()))?;
    let found = Task::parse(&text).with_context(|| path.display().to_string())?;
    ensure!(
        found == *task,
        "{} holds another trial than was asked for: remove it, or name another folder",
        place.display()
    );
    Ok(true)
}

fn lock(folder: &Path) -> anyhow::Result<File> {
    let file = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| anyhow::anyhow!("another process works in {}: wait for it, or end it", folder.display()))?;
    Ok(file)
}

/// Writes a file that is there as a whole or not at all.
pub(super) fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // The folder is locked: nobody else writes this one.
        let partial = folder.join(format!(".{}.partial", name.to_string_lossy()));
        let mut file = File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A trial that is being made. Dropped before its end, it goes.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    place: PathBuf,
    is_finished: bool,
    _lock: File,
}

impl Partial {
    /// Begins the trial whose folder will be `place`. What a killed process left of it goes.
    pub(super) fn begin(place: &Path) -> anyhow::Result<Partial> {
        let name = place.file_name().with_context(|| format!("{} names no folder", place.display()))?;
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let path = parent.join(format!(".{}.partial", name.to_string_lossy()));
        let cannot = || format!("cannot make the folder {}", path.display());
        fs::create_dir_all(&path).with_context(cannot)?;
        let lock = lock(&path)?;
        empty(&path).with_context(cannot)?;
        Ok(Partial { path, place: place.to_owned(), is_finished: false, _lock: lock })
    }

    /// Where it is written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts it in its place. All its files must have been closed.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let rename = || -> io::Result<()> {
            for entry in fs::read_dir(&self.path)? {
                File::open(entry?.path())?.sync_all()?;
            }
            File::open(&self.path)?.sync_all()?;
            fs::rename(&self.path, &self.place)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        rename().with_context(|| format!("cannot put a trial in its place {}", self.place.display()))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_finished {
            // What stays is thrown away by the next one.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
