//! The collection: repeated walks over the table of flows, in steps that block nothing for long.
//!
//! It reads the table page by page, lets `lb_gc` judge silent flows, counts the entries, and notes the clients that wait for a dead
//! endpoint. It sees each flow as it was a moment ago, whereas `lb_gc` decides by its current state. A walk inside the kernel could not be
//! interrupted and resumed: over two million entries it would occupy its CPU, and the worker pinned there, for half a second.
//!
//! Its caller decides when to take a step. `reset` handles the clients of dead endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput};

use crate::Refusal;
use crate::abi::*;
use crate::content::Content;
use crate::flows::socket;
use crate::host;
use crate::load::{self, COLLECT};
use crate::pages::{PAGE_ENTRIES, Pages};
use crate::plan::TCP;
use crate::reset::{PRODDED_MAX, SILENT_S};
use crate::sync::{Maps, failed, pairs, set};

/// Pages of one step. They take some milliseconds, or some tens of them if every entry has been silent
/// (docs/design/2026-11-21-collection.md).
const STEP_PAGES_MAX: usize = 4;
/// Idle connections that one step ends. Each costs some microseconds, because both sides get a packet. The others wait for the next
/// collection.
const STEP_ENDS_MAX: u32 = 1024;

/// The number of entries above which flows that are not established are forgotten sooner: three quarters of the table.
fn high_water(entries_max: u32) -> u32 {
    entries_max / 4 * 3
}

/// The result of a complete walk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// When the walk began, by the clock that stamps flows.
    pub(crate) now_s: u32,
    /// Entries that remain.
    pub(crate) kept: u32,
    pub(crate) expired: u32,
    pub(crate) closed: u32,
    /// Vip and client of flows whose endpoint is dead, and whose client may not know.
    pub(crate) waiting: Vec<(SocketAddr, SocketAddr)>,
}

/// A walk in progress.
#[derive(Debug)]
pub(crate) struct Walk {
    pages: Pages<lb_flow_key, lb_flow>,
    /// Entries seen, and removed.
    met: u32,
    removed: u32,
    dead: BTreeSet<u32>,
    /// How many waiting clients to skip first.
    pass_over: usize,
    walked: Walked,
    /// How many idle connections this step may still end.
    ends_left: u32,
    /// Both sides of each connection that was just ended, as in [`Walked::waiting`].
    ended: Vec<(SocketAddr, SocketAddr)>,
}

impl Walk {
    /// Begins a walk. `turn` is the number of the first waiting client to note.
    pub(crate) fn begin(held: &Content, now_s: u32, turn: usize) -> Self {
        let is_dead = |endpoint: &lb_endpoint| endpoint.state == LB_ENDPOINT_DOWN as u8;
        let dead = held.endpoints.iter().filter(|(_, endpoint)| is_dead(endpoint)).map(|(id, _)| *id).collect();
        let walked = Walked { now_s, ..Walked::default() };
        let pages = Pages::new();
        Self { pages, met: 0, removed: 0, dead, pass_over: turn, walked, ends_left: 0, ended: Vec::new() }
    }

    /// Reads some pages. Returns true at the end of the table; [`Walk::end`] then gives the result.
    pub(crate) fn step(&mut self, object: &Object, maps: &Maps, held: &Content) -> Result<bool, Refusal> {
        self.ends_left = STEP_ENDS_MAX;
        for _ in 0..STEP_PAGES_MAX {
            let is_last = self.pages.turn(&maps.flows)?;
            let mut silent = Vec::with_capacity(PAGE_ENTRIES);
            for (key, flow) in self.pages.entries() {
                // The client's entry counts for both: its twin may be on a page that was read before it was removed, or on a later one.
                if flow.flags & LB_FLOW_REPLY as u8 == 0 {
                    self.met += if flow.flags & LB_FLOW_DSR as u8 == 0 { 2 } else { 1 };
                }
                let age_s = self.walked.now_s.wrapping_sub(flow.touched_s) as i32;
                // As `is_silent` in `bpf/flow.h`: any lifetime is longer than zero.
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

    /// The sides to tell that an idle connection is over: for each, the address of the other side as it knows it, and its own address.
    pub(crate) fn take_ended(&mut self) -> Vec<(SocketAddr, SocketAddr)> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the result of the walk, and reports it to the programs.
    pub(crate) fn end(mut self, maps: &Maps) -> Result<Walked, Refusal> {
        self.walked.kept = self.met.saturating_sub(self.removed);
        let is_high = self.walked.kept > high_water(maps.flows.max_entries());
        let pressure = u32::from(is_high);
        // The time tells the programs that user space collects. Without it they would do it themselves.
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

    /// `judged` has the keys with the marks of `lb_gc`, by their position in `silent`.
    fn note_ended(&mut self, judged: &BTreeMap<u32, lb_flow_key>, silent: &[(lb_flow_key, lb_flow)]) {
        for ((key, flow), judged) in silent.iter().zip(judged.values()) {
            if judged.pad != [0; 3] {
                self.ended.push((socket(key.daddr, key.dport), socket(key.saddr, key.sport)));
                self.ended.push((socket(flow.saddr, flow.sport), socket(flow.daddr, flow.dport)));
            }
        }
    }
}

/// Whether this is an established connection whose client has been silent for a while, so that it may not know that its endpoint is dead.
fn may_not_know(key: &lb_flow_key, flow: &lb_flow, age_s: i32) -> bool {
    key.proto == TCP
        && flow.flags & LB_FLOW_REPLY as u8 == 0
        && flow.state & LB_SEEN_ACK != 0
        && flow.state & LB_CLOSING == 0
        && age_s >= SILENT_S
}
