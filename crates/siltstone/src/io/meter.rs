//! How much of a job's time went into file calls.
//!
//! The rest of its steps is computing: reading and writing blocks, comparing, compressing. Measured by the [`Clock`] around each call, so
//! it is exact in a simulation (where computing takes no time), and on a real machine counts as I/O whatever a call
//! waits for, and as computing whatever takes the thread off its core between calls.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Clock, IoCtx, ReadableFile, WritableFile};

/// Adds up the time of file calls. One for each job.
pub struct IoMeter {
    clock: Arc<dyn Clock>,
    ns: AtomicU64,
}

impl IoMeter {
    /// A meter at 0.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<IoMeter> {
        Arc::new(IoMeter { clock, ns: AtomicU64::new(0) })
    }

    /// Nanoseconds so far.
    pub fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }

    /// Makes a file call and counts its time.
    pub fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = self.clock.mono_ns();
        let result = call();
        self.ns.fetch_add(self.clock.mono_ns().saturating_sub(began), Ordering::Relaxed);
        result
    }

    /// `file`, its calls counted.
    pub fn reader(self: &Arc<Self>, file: Arc<dyn ReadableFile>) -> Arc<dyn ReadableFile> {
        Arc::new(Metered { file, meter: Arc::clone(self) })
    }

    /// `file`, its calls counted.
    pub fn writer(self: &Arc<Self>, file: Box<dyn WritableFile>) -> Box<dyn WritableFile> {
        Box::new(Metered { file, meter: Arc::clone(self) })
    }
}

struct Metered<F> {
    file: F,
    meter: Arc<IoMeter>,
}

impl ReadableFile for Metered<Arc<dyn ReadableFile>> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, ctx: IoCtx) -> io::Result<()> {
        self.meter.time(|| self.file.read_exact_at(buf, offset, ctx))
    }

    fn will_read(&self, range: Range<u64>) {
        self.meter.time(|| self.file.will_read(range));
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }
}

impl WritableFile for Metered<Box<dyn WritableFile>> {
    fn append(&mut self, data: &[u8], ctx: IoCtx) -> io::Result<()> {
        self.meter.time(|| self.file.append(data, ctx))
    }

    fn cut(&mut self, ctx: IoCtx) -> io::Result<()> {
        self.meter.time(|| self.file.cut(ctx))
    }

    fn sync(&mut self, ctx: IoCtx) -> io::Result<()> {
        self.meter.time(|| self.file.sync(ctx))
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }
}
