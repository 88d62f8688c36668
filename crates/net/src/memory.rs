//! Memory of the process that is free goes back to the system.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Less than this is not worth looking for.
const WORTH_BYTES: usize = 1024 * 1024;

/// Bytes of rooms that were freed since memory was given back.
static FREED: AtomicUsize = AtomicUsize::new(0);

/// A room of so many bytes, such as a burst leaves many of, was freed.
pub fn note_freed(bytes: usize) {
    FREED.fetch_add(bytes, Relaxed);
}

/// Gives back what bursts have left, where it is worth it: the allocator keeps what lies between pieces that are in use for ever. To be called
/// about once a second, and never on a worker.
pub fn give_back_after_bursts() {
    if FREED.load(Relaxed) >= WORTH_BYTES {
        FREED.store(0, Relaxed);
        give_back();
    }
}

/// Gives back what the allocator holds and nobody uses. It keeps that for itself otherwise: after a large piece of work that is done once, such as
/// reading a whole cluster, for ever. Takes milliseconds; call it seldom, and never on a worker.
pub fn give_back() {
    // SAFETY: without preconditions (malloc_trim(3)): it takes the allocator's own locks, and touches nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
