//! The collection: one walk over the table of flows after another, in steps that hold nobody up.
//!
//! Job: to turn the pages of the table, to have `lb_gc` judge what has been silent, to count what is there, and to note which clients wait for a dead
//! endpoint. It sees a flow as it was a moment ago; `lb_gc` decides by what it is. A walk in the kernel alone cannot be left and taken up again: over
//! two million entries it would hold the CPU it runs on, and the worker pinned there, for half a second.
//!
//! Not its job: when to take a step, and what else is done about dead endpoints (`reset`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ProgramInput, libbpf_sys};

use crate::Refusal;
use crate::abi::*;
use crate::content::Content;
use crate::flows::socket;
use crate::host;
use crate::load::{self, COLLECT};
use crate::plan::TCP;
use crate::reset::{PRODDED_MAX, SILENT_S};
use crate::sync::{Maps, failed, pairs, set};

/// Entries read at once. More than any bucket of the table holds: the kernel gives a bucket whole or not at all.
const PAGE_ENTRIES: usize = 4096;
/// Pages of one step: some milliseconds, and some tens of them where every entry has been silent (docs/design/2026-11-21-collection.md).
const STEP_PAGES_MAX: usize = 4;
/// Idle connections that one step ends: both sides of each are sent a packet, which takes some microseconds. The others wait for the next collection.
const STEP_ENDS_MAX: u32 = 1024;

/// Entries above which what is not established is forgotten sooner: three quarters of the table.
fn high_water(entries_max: u32) -> u32 {
    entries_max / 4 * 3
}

/// A walk that has come to its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// When it began, by the clock that stamps flows.
    pub(crate) now_s: u32,
    /// Entries that are left.
    pub(crate) kept: u32,
    pub(crate) expired: u32,
    pub(crate) closed: u32,
    /// Vip and client of flows whose endpoint is dead, and whose client may not know.
    pub(crate) waiting: Vec<(SocketAddr, SocketAddr)>,
}

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Walk {
    pages: Pages,
    /// Entries met, and removed.
    met: u32,
    removed: u32,
    dead: BTreeSet<u32>,
    /// Of those who wait: so many are passed over first.
    pass_over: usize,
    walked: Walked,
    /// Those that this step may still end.
    ends_left: u32,
    /// Both sides of each connection that has just been ended, as [`Walked::waiting`].
    ended: Vec<(SocketAddr, SocketAddr)>,
}

impl Walk {
    /// Begins one. `turn`: of the clients that wait, the first to be noted.
    pub(crate) fn begin(held: &Content, now_s: u32, turn: usize) -> Self {
        let is_dead = |endpoint: &lb_endpoint| endpoint.state == LB_ENDPOINT_DOWN as u8;
        let dead = held.endpoints.iter().filter(|(_, endpoint)| is_dead(endpoint)).map(|(id, _)| *id).collect();
        let walked = Walked { now_s, ..Walked::default() };
        let pages = Pages::new();
        Self { pages, met: 0, removed: 0, dead, pass_over: turn, walked, ends_left: 0, ended: Vec::new() }
    }

    /// Some pages on. True: that was the last, and what was found is in [`Walk::end`].
    pub(crate) fn step(&mut self, object: &Object, maps: &Maps, held: &Content) -> Result<bool, Refusal> {
        self.ends_left = STEP_ENDS_MAX;
        for _ in 0..STEP_PAGES_MAX {
            let is_last = self.pages.turn(&maps.flows)?;
            let mut silent = Vec::with_capacity(PAGE_ENTRIES);
            for (key, flow) in self.pages.entries() {
                // The client's entry counts for both: its twin may be on a page that was turned before it was removed, or after.
                if flow.flags & LB_FLOW_REPLY as u8 == 0 {
                    self.met += if flow.flags & LB_FLOW_DSR as u8 == 0 { 2 } else { 1 };
                }
                let age_s = self.walked.now_s.wrapping_sub(flow.touched_s) as i32;
                // As `is_silent` in `bpf/flow.h`: whatever time a flow is given, it is longer than none.
                if age_s > 0 || !held.vips.contains_key(&flow.vip) {
                    silent.push((*key, *flow));
                }
                if !self.dead.contains(&flow.endpoint) || !may_not_know(key, flow, age_s) {
                    continue;
                }
                if self.pass_over > 0 {
                    self.pass_over -= 1;
                } else if self.walked.waiting.len() < PRODDED_MAX {
                    self.walked.waiting.push((socket(key.daddr, key.dport), socket(key.saddr, key.sport)));
                }
            }
            for silent in silent.chunks(LB_GC_KEYS_MAX as usize) {
                self.judge(object, maps, silent)?;
            }
            if is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Who is to be told that an idle connection is over: each the other side, by the address that it is known by, and the one to be told.
    pub(crate) fn take_ended(&mut self) -> Vec<(SocketAddr, SocketAddr)> {
        std::mem::take(&mut self.ended)
    }

    /// What was found, and told the programs.
    pub(crate) fn end(mut self, maps: &Maps) -> Result<Walked, Refusal> {
        self.walked.kept = self.met.saturating_sub(self.removed);
        let is_high = self.walked.kept > high_water(maps.flows.max_entries());
        let pressure = u32::from(is_high);
        // The time tells the programs that somebody collects: they do it themselves when nobody does.
        set(
            &maps.shared,
            &0_u32,
            &lb_shared { flows_used: self.walked.kept, pressure, collected_s: host::now_s(), swept: 0 },
        )?;
        Ok(self.walked)
    }

    fn judge(&mut self, object: &Object, maps: &Maps, silent: &[(lb_flow_key, lb_flow)]) -> Result<(), Refusal> {
        let indexes: Vec<u8> = (0..silent.len() as u32).flat_map(u32::to_ne_bytes).collect();
        let bytes: Vec<u8> = silent.iter().flat_map(|(key, _)| bytes_of(key).iter().copied()).collect();
        let key_count = silent.len() as u32;
        let written = maps.gc_keys.update_batch(&indexes, &bytes, key_count, MapFlags::ANY, MapFlags::ANY);
        written.map_err(|error| failed("write to", &maps.gc_keys, error))?;
        let mut context = lb_gc_context { key_count, ends_max: self.ends_left, ..lb_gc_context::default() };
        let program = load::program(object, COLLECT)?;
        let input = ProgramInput { context_in: Some(bytes_of_mut(&mut context)), ..ProgramInput::default() };
        program.test_run(input).map_err(|error| Refusal::kernel("collect old flows", error))?;
        self.walked.expired += context.expired;
        self.walked.closed += context.closed;
        self.removed += context.removed;
        self.ends_left = self.ends_left.saturating_sub(context.ended);
        if context.ended > 0 {
            self.note_ended(&pairs(&maps.gc_keys)?, silent);
        }
        Ok(())
    }

    /// `judged`: the keys with the marks of `lb_gc`, by their place in `silent`.
    fn note_ended(&mut self, judged: &BTreeMap<u32, lb_flow_key>, silent: &[(lb_flow_key, lb_flow)]) {
        for ((key, flow), judged) in silent.iter().zip(judged.values()) {
            if judged.pad != [0; 3] {
                self.ended.push((socket(key.daddr, key.dport), socket(key.saddr, key.sport)));
                self.ended.push((socket(flow.saddr, flow.sport), socket(flow.daddr, flow.dport)));
            }
        }
    }
}

/// An established connection whose client has said nothing for a while: it would not learn that its endpoint is dead.
fn may_not_know(key: &lb_flow_key, flow: &lb_flow, age_s: i32) -> bool {
    key.proto == TCP
        && flow.flags & LB_FLOW_REPLY as u8 == 0
        && flow.state & LB_SEEN_ACK != 0
        && flow.state & LB_CLOSING == 0
        && age_s >= SILENT_S
}

/// The pages of a table of flows, read one after another into the same room.
#[derive(Debug)]
struct Pages {
    keys: Vec<lb_flow_key>,
    flows: Vec<lb_flow>,
    /// Entries of the page at hand: `0 <= count <= PAGE_ENTRIES`.
    count: usize,
    /// Where the next begins; `None`: at the beginning.
    next: Option<u32>,
}

impl Pages {
    fn new() -> Self {
        let (keys, flows) = (vec![lb_flow_key::default(); PAGE_ENTRIES], vec![lb_flow::default(); PAGE_ENTRIES]);
        Self { keys, flows, count: 0, next: None }
    }

    /// Reads the next page. True: it is the last.
    fn turn(&mut self, table: &MapHandle) -> Result<bool, Refusal> {
        let mut from = self.next;
        let mut next = 0_u32;
        let mut count = PAGE_ENTRIES as u32;
        // SAFETY: the table's keys and values are of these types, and there is room for `count` of each; a cursor of a hash table is 32 bits; all of it
        // outlives the call. Without options the call takes the defaults.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                table.as_fd().as_raw_fd(),
                from.as_mut().map_or(null_mut(), |from| std::ptr::from_mut(from).cast()),
                std::ptr::from_mut(&mut next).cast(),
                self.keys.as_mut_ptr().cast(),
                self.flows.as_mut_ptr().cast(),
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
                Err(failed("read", table, std::io::Error::from_raw_os_error(error)))
            }
        }
    }

    fn entries(&self) -> impl Iterator<Item = (&lb_flow_key, &lb_flow)> {
        self.keys.iter().zip(&self.flows).take(self.count)
    }
}
