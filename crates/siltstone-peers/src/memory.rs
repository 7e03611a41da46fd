//! A bound on the memory of an engine's process, page cache included: a control group of the kernel, of the first or the second version.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const GROUPS: &str = "/sys/fs/cgroup";

/// A control group, removed when dropped.
pub(crate) struct MemoryLimit {
    dir: PathBuf,
}

impl MemoryLimit {
    /// A group whose processes together may have so many bytes.
    ///
    /// # Errors
    /// If the user may not make one: that takes root, or a container that owns its groups.
    pub(crate) fn new(bytes: u64) -> Result<MemoryLimit> {
        let name = format!("siltstone-peers-{}", std::process::id());
        let is_second = Path::new(GROUPS).join("cgroup.controllers").exists();
        let (dir, file) = if is_second {
            // Groups have a controller only if the one above hands it down; where it does so already, this changes nothing.
            let _ = fs::write(Path::new(GROUPS).join("cgroup.subtree_control"), "+memory");
            (Path::new(GROUPS).join(name), "memory.max")
        } else {
            (Path::new(GROUPS).join("memory").join(name), "memory.limit_in_bytes")
        };
        let limit = MemoryLimit { dir };
        let why = || format!("--memory needs a control group of its own ({}), as root has it", limit.dir.display());
        fs::create_dir(&limit.dir).with_context(why)?;
        fs::write(limit.dir.join(file), bytes.to_string()).with_context(why)?;
        Ok(limit)
    }

    /// The file into which a process writes its number to get into the group.
    pub(crate) fn door(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // What is left of it is an empty folder, which goes with the next boot.
        let _ = fs::remove_dir(&self.dir);
    }
}
