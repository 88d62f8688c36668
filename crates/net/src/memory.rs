//! Memory of the process that is free goes back to the system.

/// Gives back what the allocator holds and nobody uses. It keeps that for itself otherwise: after a large piece of work that is done once, such as
/// reading a whole cluster, for ever. Takes milliseconds; call it seldom, and never on a worker.
pub fn give_back() {
    // SAFETY: without preconditions (malloc_trim(3)): it takes the allocator's own locks, and touches nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
