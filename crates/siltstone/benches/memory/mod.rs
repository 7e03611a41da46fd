//! Files in memory, for benches of tables.

use std::io;
use std::sync::{Arc, Mutex};

use siltstone::io::{IoCtx, ReadableFile, WritableFile};

/// Written to.
#[derive(Clone, Default)]
pub(crate) struct Memory(pub(crate) Arc<Mutex<Vec<u8>>>);

impl WritableFile for Memory {
    fn append(&mut self, data: &[u8], _: IoCtx) -> io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(())
    }
    fn sync(&mut self, _: IoCtx) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
}

/// Read from.
pub(crate) struct Fixed(pub(crate) Arc<Vec<u8>>);

impl ReadableFile for Fixed {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64, _: IoCtx) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.0[from..from + buf.len()]);
        Ok(())
    }
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}
