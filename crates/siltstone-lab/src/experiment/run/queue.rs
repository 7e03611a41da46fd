//! Which run is made next, when several threads make them.
//!
//! A run is ready when the one that it takes its rates from has been made. Runs that begin with the same loaded store share it: whoever
//! takes the first one loads it, and the others wait for that. Results do not depend on the order, so the order is the one that ends soonest: what has
//! the most work behind it goes first, and what begins with a store that is there goes before what needs another one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::{Job, Made, Place};
use crate::load::SimWorld;

/// The runs of experiments at one scale.
pub(super) struct Queue<'a> {
    places: &'a [Place<'a>],
    scale: u64,
    seed: u64,
    /// How many places have a result.
    done: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By place.
    results: Vec<Option<Made>>,
    /// May be taken.
    ready: Vec<Ready>,
    waiting: Vec<Waiting>,
    /// Places that get the result of another one, whose job is equal.
    same: Vec<(usize, usize)>,
    /// The first place of each job.
    known: BTreeMap<String, usize>,
    /// Loaded stores that somebody begins with; none while a thread loads it.
    stores: BTreeMap<String, Option<Arc<SimWorld>>>,
    /// By the key of a store, about how much work all runs are that begin with it.
    work: BTreeMap<String, u64>,
    /// How many jobs threads have at the moment.
    taken: usize,
    /// Somebody failed or was told to stop.
    ended: bool,
}

/// A run that can be made.
struct Ready {
    place: usize,
    /// Of the store that it begins with.
    key: String,
    job: Job,
}

/// A run that waits for the one that it takes its rates from.
struct Waiting {
    place: usize,
    source: usize,
    /// Of the store that it will begin with; none where that follows from the rates, too.
    key: Option<String>,
}

impl State {
    /// The job of `place` can be done. Answers what it measures, if that is known.
    fn admit(&mut self, place: usize, job: Job) -> Option<Made> {
        let first = *self.known.entry(format!("{job:?}")).or_insert(place);
        if first != place {
            let made = self.results[first].clone();
            if made.is_none() {
                self.same.push((place, first));
            }
            return made;
        }
        let key = job.load_key();
        let work = |key: &str| self.work.get(key).copied().unwrap_or(0);
        let at = self.ready.partition_point(|other| work(&other.key) >= work(&key));
        self.ready.insert(at, Ready { place, key, job });
        None
    }

    /// Forgets the stores that nobody will begin with.
    fn tidy(&mut self) {
        let State { stores, ready, waiting, .. } = self;
        stores.retain(|key, store| {
            let wanted = || ready.iter().any(|ready| ready.key == *key);
            let awaited = || waiting.iter().any(|waiting| waiting.key.as_ref() == Some(key));
            store.is_none() || wanted() || awaited()
        });
    }
}

impl<'a> Queue<'a> {
    /// With all of `places` to make.
    ///
    /// # Errors
    /// A place's setup makes no sense.
    pub(super) fn new(places: &'a [Place<'a>], scale: u64, seed: u64) -> anyhow::Result<Queue<'a>> {
        let mut state = State { results: vec![None; places.len()], ..State::default() };
        let mut closed = Vec::new();
        for (at, place) in places.iter().enumerate() {
            let job = place.job(scale, seed, None)?;
            let key = job.load_key();
            *state.work.entry(key.clone()).or_insert(job.workload.records) += job.work();
            match place.source(places) {
                Some(source) => {
                    let key = place.run.limit.is_none().then_some(key);
                    state.waiting.push(Waiting { place: at, source, key });
                }
                None => closed.push((at, job)),
            }
        }
        for (at, job) in closed {
            state.admit(at, job);
        }
        Ok(Queue { places, scale, seed, done: AtomicUsize::new(0), state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Makes runs until none is left. Any number of threads may be in here. `progress` is told how many of how many are done, and ends the work of
    /// all threads by answering false.
    ///
    /// # Errors
    /// The first error of a store; other threads end what they do.
    pub(super) fn work(&self, progress: &dyn Fn(usize, usize) -> bool) -> anyhow::Result<()> {
        let go_on = || progress(self.done.load(Ordering::Relaxed), self.places.len());
        while let Some((Ready { place, key, job }, store)) = self.take() {
            let mut turn = Turn { queue: self, is_done: false };
            let store = match store {
                Some(store) => store,
                None if !go_on() => break,
                None => {
                    let store = Arc::new(job.load(&go_on)?);
                    self.loaded(key, &store);
                    store
                }
            };
            if !go_on() {
                break;
            }
            self.finish(place, job.run(&store, &go_on)?)?;
            turn.is_done = true;
        }
        Ok(())
    }

    /// By place, what was measured.
    pub(super) fn into_results(self) -> Vec<Option<Made>> {
        self.state.into_inner().expect("no holder panics").results
    }

    /// The next job, with its store if that is loaded; otherwise whoever takes it loads it.
    fn take(&self) -> Option<(Ready, Option<Arc<SimWorld>>)> {
        let mut state = self.state.lock().expect("no holder panics");
        while !state.ended {
            let State { ready, stores, .. } = &mut *state;
            let is_there = |ready: &Ready| stores.get(&ready.key).is_some_and(Option::is_some);
            let is_new = |ready: &Ready| !stores.contains_key(&ready.key);
            let next = ready.iter().position(is_there).or_else(|| ready.iter().position(is_new));
            match next {
                Some(at) => {
                    let ready = ready.remove(at);
                    let store = stores.entry(ready.key.clone()).or_insert(None).clone();
                    state.taken += 1;
                    state.tidy();
                    return Some((ready, store));
                }
                // What still waits, waits for a run that was ended early.
                None if state.taken == 0 => break,
                None => state = self.changed.wait(state).expect("no holder panics"),
            }
        }
        None
    }

    fn loaded(&self, key: String, store: &Arc<SimWorld>) {
        let mut state = self.state.lock().expect("no holder panics");
        state.stores.insert(key, Some(Arc::clone(store)));
        state.tidy();
        drop(state);
        self.changed.notify_all();
    }

    /// A run was made: so are those that are equal, and those that take their rates from them are ready.
    fn finish(&self, place: usize, made: Made) -> anyhow::Result<()> {
        let mut guard = self.state.lock().expect("no holder panics");
        let state = &mut *guard;
        let mut finished = vec![(place, made)];
        while let Some((at, made)) = finished.pop() {
            finished.extend(state.same.extract_if(.., |(_, first)| *first == at).map(|(same, _)| (same, made.clone())));
            let (load, _) = &*state.results[at].insert(made);
            if !load.is_partial {
                let load = load.clone();
                let freed: Vec<_> = state.waiting.extract_if(.., |waiting| waiting.source == at).collect();
                for Waiting { place, .. } in freed {
                    let job = self.places[place].job(self.scale, self.seed, Some(&load))?;
                    finished.extend(state.admit(place, job).map(|made| (place, made)));
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        state.tidy();
        Ok(())
    }
}

/// A thread has a job; at the end, whatever that is, the others hear of it.
struct Turn<'q, 'a> {
    queue: &'q Queue<'a>,
    is_done: bool,
}

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock().expect("no holder panics");
        state.taken -= 1;
        state.ended |= !self.is_done;
        drop(state);
        self.queue.changed.notify_all();
    }
}
