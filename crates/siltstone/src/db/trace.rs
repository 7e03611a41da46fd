//! A store that records what it is asked for: beginning and ending it, and what the calls say to it.
//!
//! While no trace is recorded a write looks at one field that is in its hands anyway, a read at one flag. The lane that orders and writes the
//! trace is started with it and ends with it.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::core::{Core, KeyspaceCore};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::io::{CreateOptions, Fs, IoClass, IoCtx, Lane, LaneStep, OpenOptions, Workers};
use crate::iter::visible::Bounds;
use crate::num::{to_u32, to_u64, to_usize};
use crate::trace::{Buffer, KeyHash, Op, RangeTrace, Recorder, Round, Target, TraceOptions, TraceSummary};
use crate::version::KeyspaceId;

/// The file in a store's folder that asks for a trace.
pub(crate) const REQUEST_FILE: &str = "TRACE-REQUEST";
const REQUEST_TEMPORARY: &str = "TRACE-REQUEST.new";
/// A request is a few lines.
const REQUEST_BYTES: u64 = 64 << 10;
const CTX: IoCtx = IoCtx::foreground(IoClass::Trace);
/// How often what was recorded is taken from the buffers.
const ROUND: Duration = Duration::from_millis(10);

/// The trace that is being recorded, if one is.
#[derive(Default)]
pub(crate) struct Tracing {
    on: AtomicBool,
    recorder: ArcSwapOption<Recorder>,
    run: Mutex<Option<Run>>,
}

struct Run {
    recorder: Arc<Recorder>,
    workers: Box<dyn Workers>,
}

impl Tracing {
    /// Whether reads are to be recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }
}

/// Asks a store to record what it is asked for, from its next opening on, whichever program opens it: a file in its folder.
///
/// Each opening that is used makes a trace of its own: `path`, then `path.2` and so on. One that fails to is told by
/// [`Event::TraceEnded`] and opens all the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceRequest {
    /// The first file.
    pub path: std::path::PathBuf,
    /// How.
    pub options: TraceOptions,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestText {
    path: std::path::PathBuf,
    #[serde(default)]
    max_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash_secret: Option<String>,
    #[serde(default)]
    keep_prefix: u32,
}

impl TraceRequest {
    /// Leaves the request in the folder of the store `store`, in place of one that is there.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub fn leave(&self, fs: &dyn Fs, store: &Path) -> Result<()> {
        let (path, temporary) = (store.join(REQUEST_FILE), store.join(REQUEST_TEMPORARY));
        let hash = self.options.hash_keys.as_ref();
        let text = RequestText {
            path: self.path.clone(),
            max_bytes: self.options.max_bytes,
            hash_secret: hash.map(|hash| format!("{:032x}", u128::from_be_bytes(hash.secret))),
            keep_prefix: hash.map_or(0, |hash| hash.keep_prefix),
        };
        let text = toml::to_string(&text).map_err(|e| Error::invalid(format!("the path of a trace: {e}")))?;
        let _ = fs.remove_file(&temporary, CTX);
        let left = fs.create(&temporary, CreateOptions::default(), CTX).and_then(|mut file| {
            file.append(text.as_bytes(), CTX)?;
            file.sync(CTX)?;
            fs.rename(&temporary, &path, CTX)?;
            fs.sync_dir(store, CTX)
        });
        left.map_err(|source| Error::io(&path, "cannot leave the request for a trace", source))
    }

    /// The request in the folder of a store, if there is one.
    ///
    /// # Errors
    /// `Io`; `InvalidArgument` if it makes no sense.
    pub fn find(fs: &dyn Fs, store: &Path) -> Result<Option<TraceRequest>> {
        let path = store.join(REQUEST_FILE);
        let io = |source| Error::io(&path, "cannot read the request for a trace", source);
        if !fs.exists(&path, CTX).map_err(io)? {
            return Ok(None);
        }
        let file = fs.open(&path, OpenOptions::default(), CTX).map_err(io)?;
        let mut bytes = vec![0; to_usize(file.bytes().min(REQUEST_BYTES))];
        file.read_exact_at(&mut bytes, 0, CTX).map_err(io)?;
        let wrong = |what: String| Error::invalid(format!("the request for a trace makes no sense: {what}")).at(&path);
        let text = String::from_utf8(bytes).map_err(|e| wrong(e.to_string()))?;
        let text: RequestText = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        let secret = text.hash_secret.map(|hex| u128::from_str_radix(&hex, 16).map_err(|e| wrong(e.to_string())));
        let keep_prefix = text.keep_prefix;
        let hash_keys = secret.transpose()?.map(|secret| KeyHash { secret: secret.to_be_bytes(), keep_prefix });
        let options = TraceOptions { hash_keys, max_bytes: text.max_bytes };
        Ok(Some(TraceRequest { path: text.path, options }))
    }

    /// Takes the request away; says whether there was one.
    ///
    /// # Errors
    /// `Io`.
    pub fn withdraw(fs: &dyn Fs, store: &Path) -> Result<bool> {
        let path = store.join(REQUEST_FILE);
        match fs.remove_file(&path, CTX) {
            Ok(()) => Ok(true),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::io(&path, "cannot remove the request for a trace", source)),
        }
    }
}

impl Core {
    /// Begins a trace.
    pub(crate) fn start_trace(self: &Arc<Self>, target: Target, options: TraceOptions) -> Result<()> {
        self.health.check_open()?;
        let mut run = self.tracing.run.lock();
        if let Some(run) = &*run {
            let what =
                "a trace of this store is being recorded, or its end was not asked for; stop it before another one";
            return Err(Error::new(ErrorKind::AlreadyExists, what).at(&run.recorder.target()));
        }
        let recorder = Recorder::begin(Arc::clone(&self.fs), Arc::clone(&self.clock), target, options)?;
        let recorder = Arc::new(recorder);
        let mut state = self.writer.lock();
        // Keyspaces come and go under the writer lock.
        let keyspaces = self.keyspaces.load();
        recorder.name(keyspaces.values().map(|keyspace| (keyspace.id, keyspace.name.as_str())));
        state.trace = Some(Box::new(recorder.writer_buffer()));
        self.tracing.recorder.store(Some(Arc::clone(&recorder)));
        self.tracing.on.store(true, Ordering::Release);
        drop(state);
        let core = Arc::downgrade(self);
        let step = move || core.upgrade().map_or(LaneStep::Idle, |core| core.trace_step());
        // The buffers hold for a while: it need not push a writer aside.
        let lane = Lane { name: "trace".to_owned(), nice: 5, step: Arc::new(step) };
        match self.executor.start(vec![lane]) {
            Ok(workers) => *run = Some(Run { recorder, workers }),
            Err(error) => {
                self.forget_trace(&recorder);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Begins the trace that the store's folder asks for. The store is as well without it.
    pub(crate) fn trace_as_requested(self: &Arc<Self>) {
        let begun = TraceRequest::find(&*self.fs, &self.dir).and_then(|request| match request {
            None => Ok(()),
            Some(TraceRequest { path, options }) => self.start_trace(Target::Numbered(path), options),
        });
        if let Err(error) = begun {
            self.tell(&Event::TraceEnded { path: self.dir.join(REQUEST_FILE), error: Some(error) });
        }
    }

    /// Ends the trace.
    pub(crate) fn stop_trace(&self) -> Result<TraceSummary> {
        let mut run = self.tracing.run.lock();
        let Some(Run { recorder, workers }) = run.take() else {
            return Err(Error::new(ErrorKind::NotFound, "no trace is being recorded"));
        };
        // Before another one can begin.
        let mut left = self.forget_trace(&recorder);
        drop(run);
        workers.stop();
        recorder.round(|memory| left.as_mut().map(|(trace, at_ns)| (trace.take(memory), *at_ns)), true);
        Ok(recorder.end())
    }

    /// Nothing is recorded any more, if this trace is still the one that is: then, what writers have left to be recorded, and until when.
    fn forget_trace(&self, recorder: &Arc<Recorder>) -> Option<(Box<Buffer>, u64)> {
        let mut state = self.writer.lock();
        if !self.tracing.recorder.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, recorder)) {
            return None;
        }
        self.tracing.on.store(false, Ordering::Release);
        self.tracing.recorder.store(None);
        Some((state.trace.take()?, self.clock.mono_ns()))
    }

    fn trace_step(&self) -> LaneStep {
        let Some(recorder) = self.tracing.recorder.load_full() else { return LaneStep::Idle };
        match self.trace_round(&recorder) {
            Round::On => LaneStep::IdleFor(ROUND),
            Round::Ended => {
                // Unless it is being stopped, which tells who stops it.
                if self.forget_trace(&recorder).is_some() {
                    self.tell(&Event::TraceEnded { path: recorder.target(), error: recorder.error() });
                }
                LaneStep::Idle
            }
        }
    }

    fn trace_round(&self, recorder: &Recorder) -> Round {
        let take = |memory| {
            let mut state = self.writer.lock();
            let chunk = state.trace.as_mut()?.take(memory);
            // Under the lock: no write has an earlier time that is not in the chunk.
            Some((chunk, self.clock.mono_ns()))
        };
        recorder.round(take, false)
    }

    /// Records what changes keyspaces, or is no single write.
    fn trace_other(&self, op: impl FnOnce() -> Op) {
        if self.tracing.is_on()
            && let Some(trace) = &mut self.writer.lock().trace
        {
            trace.other(&op());
        }
    }

    pub(crate) fn trace_flush(&self, keyspace: Option<&KeyspaceCore>) {
        self.trace_other(|| Op::Flush { keyspace: keyspace.map(|keyspace| keyspace.id) });
    }

    pub(crate) fn trace_compact<K: AsRef<[u8]>>(&self, keyspace: &KeyspaceCore, lower: Bound<&K>, upper: Bound<&K>) {
        let owned = |bound: Bound<&K>| bound.map(|key| Bytes::copy_from_slice(key.as_ref()));
        self.trace_other(|| Op::Compact { keyspace: keyspace.id, lower: owned(lower), upper: owned(upper) });
    }

    pub(crate) fn trace_ingest(&self, keyspace: &KeyspaceCore, records: u64) {
        self.trace_other(|| Op::Ingest { keyspace: keyspace.id, records });
    }

    #[cold]
    pub(crate) fn trace_get(&self, keyspace: &KeyspaceCore, key: &[u8], found: Option<&[u8]>) {
        if let Some(recorder) = &*self.tracing.recorder.load() {
            recorder.get(keyspace.id, key, found.map(|value| to_u32(value.len())));
        }
    }

    /// Keys whose lookup failed are left out.
    #[cold]
    pub(crate) fn trace_multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &KeyspaceCore,
        keys: &[K],
        found: &[Result<Option<Bytes>>],
    ) {
        if let Some(recorder) = &*self.tracing.recorder.load() {
            let found = keys.iter().zip(found).filter_map(|(key, found)| {
                let found = found.as_ref().ok()?;
                Some((key.as_ref(), found.as_ref().map(|value| to_u32(value.len()))))
            });
            let looked: Vec<(&[u8], Option<u32>)> = found.collect();
            recorder.multi_get(keyspace.id, &looked);
        }
    }

    pub(crate) fn trace_range(&self, keyspace: &KeyspaceCore, bounds: &Bounds) -> Option<Box<RangeTrace>> {
        if !self.tracing.is_on() {
            return None;
        }
        let recorder = self.tracing.recorder.load_full()?;
        Some(Box::new(recorder.range(keyspace.id, &bounds.lower, &bounds.upper)))
    }
}

impl super::write::WriteState {
    /// Records that a keyspace came.
    pub(crate) fn trace_keyspace(&mut self, id: KeyspaceId, name: &str) {
        if let Some(trace) = &mut self.trace {
            trace.other(&Op::Keyspace { id, name: name.to_owned() });
        }
    }

    /// Records that a keyspace went.
    pub(crate) fn trace_drop(&mut self, id: KeyspaceId) {
        if let Some(trace) = &mut self.trace {
            trace.other(&Op::DropKeyspace { id });
        }
    }
}

const _: () = assert!(to_u64(u32::MAX as usize) >= to_u64(crate::key::MAX_VALUE_BYTES));
