//! Reads a map page by page.
//!
//! A page of a hash map ends with a whole bucket, so it is shorter than it could be whenever the next bucket does not fit: only the kernel
//! knows which page is the last. A reader that took the first short page for the last one saw 20,480 of 100,000 entries.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use libbpf_rs::{MapCore, MapHandle, libbpf_sys};

use crate::Refusal;
use crate::abi::Layout;
use crate::sync::failed;

/// Entries that are read at once. This is more than any bucket of a map holds, because the kernel returns only whole buckets.
pub(crate) const PAGE_ENTRIES: usize = 4096;

/// Reads the pages of a map into the same buffer.
#[derive(Debug)]
pub(crate) struct Pages<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
    /// Entries of the current page: `0 <= count <= PAGE_ENTRIES`.
    count: usize,
    /// The cursor of the next page; `None` at the beginning.
    next: Option<u32>,
}

impl<K: Layout, V: Layout> Pages<K, V> {
    pub(crate) fn new() -> Self {
        let (keys, values) = (vec![K::default(); PAGE_ENTRIES], vec![V::default(); PAGE_ENTRIES]);
        Self { keys, values, count: 0, next: None }
    }

    /// Reads the next page. Returns true if it is the last. The keys and values of `map` must have the sizes of `K` and `V`.
    pub(crate) fn turn(&mut self, map: &MapHandle) -> Result<bool, Refusal> {
        if (map.key_size() as usize, map.value_size() as usize) != (size_of::<K>(), size_of::<V>()) {
            return Err(failed("read", map, "its keys or values have another size"));
        }
        let mut from = self.next;
        let mut next = 0_u32;
        let mut count = PAGE_ENTRIES as u32;
        // SAFETY: the map's keys and values have the sizes of these types, which accept any bytes (Layout), and there is room for `count` of
        // each; the cursor of a hash map is 32 bits, and that of an array is its key, which is 32 bits, too; all of it outlives the call.
        // Without options the call takes the defaults.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.as_mut().map_or(null_mut(), |from| std::ptr::from_mut(from).cast()),
                std::ptr::from_mut(&mut next).cast(),
                self.keys.as_mut_ptr().cast(),
                self.values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        self.next = Some(next);
        self.count = count as usize;
        match -result {
            0 => Ok(false),
            libc::ENOENT => Ok(true),
            error => {
                self.count = 0;
                Err(failed("read", map, std::io::Error::from_raw_os_error(error)))
            }
        }
    }

    /// The entries of the current page.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.keys.iter().zip(&self.values).take(self.count)
    }
}
