//! The stack of a thread that does not answer, taken by another one.
//!
//! The other thread gets a signal, and its handler walks the stack and writes down the addresses. The handler allocates nothing and takes no
//! lock, except that of the loader, which walking a stack takes, and which the same thread may take twice. The names of the functions come
//! from the symbols in the file of the program.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{io, ptr, thread};

/// Frames that are written down.
const FRAMES_MAX: usize = 48;
/// How long to wait for the other thread, in steps of a millisecond. A thread in an uninterruptible call of the kernel does not answer.
const PATIENCE_MS: u32 = 200;
/// A larger table of symbols is not read, in bytes.
const TABLE_BYTES_MAX: u64 = 256 << 20;
/// A signal that is ignored by default, so that a stray one does no harm.
const SIGNAL: c_int = libc::SIGURG;

/// The thread whose stack is wanted, or 0.
static WANTED: AtomicI32 = AtomicI32::new(0);
/// The number of frames that were written down, plus one; 0 means not done.
static DONE: AtomicUsize = AtomicUsize::new(0);
static FRAMES: [AtomicUsize; FRAMES_MAX] = [const { AtomicUsize::new(0) }; FRAMES_MAX];
/// One stack at a time.
static ONE: Mutex<()> = Mutex::new(());

// The unwinder that Rust's own panics use (Itanium C++ ABI, "Exception Handling", section 1.6).
unsafe extern "C" {
    fn _Unwind_Backtrace(step: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// `_URC_NO_REASON`: continue with the next frame.
const CONTINUE: c_int = 0;
/// `_URC_END_OF_STACK`: stop.
const STOP: c_int = 5;

/// Returns the functions of this process's thread with this id, the innermost first, as `name` or as an address in the file of the program.
///
/// # Errors
/// Says why there is no stack: there is no such thread, it may not be sent a signal, or it did not answer, and what it does instead.
pub fn of_thread(thread: u32) -> io::Result<Vec<String>> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    install()?;
    let thread = i32::try_from(thread).map_err(io::Error::other)?;
    DONE.store(0, Ordering::Relaxed);
    WANTED.store(thread, Ordering::Release);
    // SAFETY: tgkill takes three numbers and sends a signal to a thread of this process alone.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
    if sent != 0 {
        let error = io::Error::last_os_error();
        WANTED.store(0, Ordering::Relaxed);
        return Err(not_sent(&error));
    }
    let mut left = PATIENCE_MS;
    while DONE.load(Ordering::Acquire) == 0 && left > 0 {
        // Its handler can do little: it cannot wake this thread.
        thread::park_timeout(Duration::from_millis(1));
        left -= 1;
    }
    // A late answer must not be mixed with the next one.
    WANTED.store(0, Ordering::Release);
    let Some(depth) = DONE.load(Ordering::Acquire).checked_sub(1) else {
        return Err(io::Error::new(io::ErrorKind::TimedOut, instead(thread)));
    };
    let frames: Vec<usize> = FRAMES.iter().take(depth).map(|frame| frame.load(Ordering::Relaxed)).collect();
    Ok(named(&frames))
}

/// Why a signal cannot be sent. A process may send signals to its own threads, whatever its privileges and the limits on ptrace are, so only a filter of
/// system calls or a security module can forbid that.
fn not_sent(error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::ESRCH) => "the thread has ended".to_owned(),
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => format!(
            "a seccomp filter or a security module forbids the signal that asks for it (tgkill: {error}): allow tgkill in the seccomp profile of the \
             container, or in SystemCallFilter= of the unit"
        ),
        _ => format!("the signal that asks for it cannot be sent (tgkill: {error})"),
    };
    io::Error::new(error.kind(), why)
}

/// What a thread does that did not answer.
fn instead(thread: i32) -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
    let status = read("status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let waited = format!("it did not answer within {PATIENCE_MS} ms");
    match field("State").and_then(|state| state.chars().next()) {
        Some('R') => format!(
            "{waited}: it could run and gets no CPU time; the host is busy, or the CPU quota of the cgroup is used up"
        ),
        Some('D') => {
            let call = read("wchan").filter(|call| !matches!(call.as_str(), "" | "0"));
            let place = call.map_or_else(|| "the kernel".to_owned(), |call| format!("{call} of the kernel"));
            // Each line is `[<0>] function+0x1/0x2`. Reading it takes CAP_SYS_ADMIN.
            let frames = read("stack").unwrap_or_default();
            let frames: Vec<&str> =
                frames.lines().filter_map(|line| line.split(' ').nth(1)?.split('+').next()).take(FRAMES_MAX).collect();
            let frames = match frames.as_slice() {
                [] => "with CAP_SYS_ADMIN, the stack of the kernel would be here".to_owned(),
                frames => frames.join(" < "),
            };
            format!("{waited}: it waits in {place} and cannot be interrupted; {frames}")
        }
        Some('t') => {
            let tracer = field("TracerPid").unwrap_or("?");
            format!("{waited}: a debugger, process {tracer}, has stopped it")
        }
        Some('T') => format!("{waited}: a signal has stopped it; SIGCONT lets it continue"),
        Some('Z' | 'X') => "the thread has ended".to_owned(),
        Some(_) => format!("{waited}: it sleeps, and the signal that asks for it was blocked or held back"),
        None => format!("{waited}, and /proc says nothing of it"),
    }
}

/// The id of this process's thread with this name.
///
/// # Errors
/// There is none, or `/proc` cannot be read.
pub fn thread_named(name: &str) -> io::Result<u32> {
    let tasks = fs::read_dir("/proc/self/task");
    let tasks =
        tasks.map_err(|error| io::Error::new(error.kind(), format!("/proc/self/task cannot be read: {error}")))?;
    let found = tasks.flatten().find_map(|task| {
        let found = fs::read_to_string(task.path().join("comm")).ok()?;
        (found.trim_end() == name).then(|| task.file_name().to_str()?.parse().ok()).flatten()
    });
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its thread is gone"))
}

fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let is_installed = *INSTALLED.get_or_init(|| {
        // The unwinder prepares itself when it is first used, which must not happen in the handler.
        let mut depth = 0_usize;
        // SAFETY: `step` gets the address of `depth`, which outlives the call.
        unsafe { _Unwind_Backtrace(step, ptr::from_mut(&mut depth).cast()) };
        // SAFETY: all zeros is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is complete, and the handler is safe in the context of a signal.
        unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) == 0 }
    });
    if is_installed {
        Ok(())
    } else {
        Err(io::Error::other("the handler of a signal cannot be installed: a seccomp filter may forbid sigaction"))
    }
}

extern "C" fn handler(_signal: c_int) {
    // SAFETY: gettid and the address of errno need nothing. errno is kept as the interrupted code expects it.
    let (own, errno) = unsafe { (libc::gettid(), libc::__errno_location()) };
    if WANTED.load(Ordering::Acquire) != own || DONE.load(Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: the address of errno is valid for this thread.
    let kept = unsafe { *errno };
    let mut depth = 0_usize;
    // SAFETY: `step` gets the address of `depth`, which outlives the call.
    unsafe { _Unwind_Backtrace(step, ptr::from_mut(&mut depth).cast()) };
    DONE.store(depth + 1, Ordering::Release);
    // SAFETY: as above.
    unsafe { *errno = kept };
}

extern "C" fn step(context: *mut c_void, depth: *mut c_void) -> c_int {
    // SAFETY: `depth` is the address that the callers of the unwinder have given it, and `context` is that of the unwinder.
    let (depth, address) = unsafe { (&mut *depth.cast::<usize>(), _Unwind_GetIP(context)) };
    let Some(frame) = FRAMES.get(*depth) else { return STOP };
    frame.store(address, Ordering::Relaxed);
    *depth += 1;
    CONTINUE
}

/// The names of the functions at these addresses.
fn named(addresses: &[usize]) -> Vec<String> {
    let Some(base) = base() else { return addresses.iter().map(|address| format!("{address:#x}")).collect() };
    // An address after a call may already be behind its function.
    let offsets: Vec<u64> =
        addresses.iter().map(|address| (address.saturating_sub(1)).wrapping_sub(base) as u64).collect();
    let names = Symbols::of_program().map(|symbols| symbols.names(&offsets)).unwrap_or_default();
    let name = |(index, offset): (usize, &u64)| match names.get(index) {
        Some(Some(name)) => readable(name),
        _ => format!("{offset:#x}"),
    };
    offsets.iter().enumerate().map(name).collect()
}

/// Where the program is in memory.
fn base() -> Option<usize> {
    let program = fs::read_link("/proc/self/exe").ok()?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with(program.to_str().unwrap_or("?")))?;
    usize::from_str_radix(line.split('-').next()?, 16).ok()
}

/// The symbols of an ELF file with 64 bits.
struct Symbols {
    table: Vec<u8>,
    strings: Vec<u8>,
}

impl Symbols {
    fn of_program() -> Option<Self> {
        let file = File::open("/proc/self/exe").ok()?;
        let read = |at: u64, length: u64| -> Option<Vec<u8>> {
            let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| length <= TABLE_BYTES_MAX)?];
            file.read_exact_at(&mut bytes, at).ok()?;
            Some(bytes)
        };
        let head = read(0, 64)?;
        if head.get(..5)? != b"\x7fELF\x02" {
            return None;
        }
        let (sections_at, count) = (number(&head, 40, 8)?, number(&head, 60, 2)?);
        let sections = read(sections_at, count.checked_mul(64)?)?;
        let section = |index: usize| sections.get(index * 64..index * 64 + 64);
        let content = |section: &[u8]| read(number(section, 24, 8)?, number(section, 32, 8)?);
        // SHT_SYMTAB is 2. `sh_link` is the section of its strings.
        let found = (0..usize::try_from(count).ok()?).filter_map(section).find(|of| number(of, 4, 4) == Some(2))?;
        let strings = section(usize::try_from(number(found, 40, 4)?).ok()?)?;
        Some(Self { table: content(found)?, strings: content(strings)? })
    }

    /// The name of the function at each offset.
    fn names(&self, offsets: &[u64]) -> Vec<Option<String>> {
        let mut found = vec![None; offsets.len()];
        for entry in self.table.chunks_exact(24) {
            let (Some(name), Some(info), Some(start), Some(size)) =
                (number(entry, 0, 4), number(entry, 4, 1), number(entry, 8, 8), number(entry, 16, 8))
            else {
                continue;
            };
            // STT_FUNC is 2.
            if info & 15 != 2 {
                continue;
            }
            for (found, offset) in found.iter_mut().zip(offsets) {
                if (start..start.saturating_add(size)).contains(offset) {
                    *found = self.string(name);
                }
            }
        }
        found
    }

    fn string(&self, at: u64) -> Option<String> {
        let rest = self.strings.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(rest.get(..end)?).into_owned())
    }
}

/// A little-endian number of `length` bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The identifiers in a mangled name, joined: enough to find the function. Other names stay as they are.
fn readable(symbol: &str) -> String {
    let Some(mut rest) = symbol.strip_prefix("_ZN").or_else(|| symbol.strip_prefix("_R")) else {
        return symbol.to_owned();
    };
    let mut parts: Vec<&str> = Vec::new();
    while let Some(first) = rest.chars().next() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let length = rest.get(..digits).and_then(|digits| digits.parse::<usize>().ok());
        if let Some(length) = length {
            let text = rest.get(digits..).unwrap_or_default();
            let text = text.strip_prefix('_').unwrap_or(text);
            let Some(part) = text.get(..length) else { break };
            let is_hash =
                length == 17 && part.starts_with('h') && part.bytes().skip(1).all(|byte| byte.is_ascii_hexdigit());
            if !is_hash && !part.is_empty() {
                parts.push(part);
            }
            rest = text.get(length..).unwrap_or_default();
            continue;
        }
        // A disambiguator or a reference to an earlier part: `s` or `B`, digits of base 62, and `_`.
        let number = rest.strip_prefix(['s', 'B']).and_then(|rest| rest.split_once('_'));
        match number.filter(|(number, _)| number.len() < 16 && number.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        {
            Some((_, after)) => rest = after,
            None => rest = rest.get(first.len_utf8()..).unwrap_or_default(),
        }
    }
    if parts.is_empty() { symbol.to_owned() } else { parts.join("::") }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::AtomicBool;

    use super::*;

    static STOPPED: AtomicBool = AtomicBool::new(false);

    #[inline(never)]
    fn spins_until_it_is_stopped() {
        let mut turns = 0_u64;
        while !STOPPED.load(Ordering::Relaxed) {
            turns = black_box(turns + 1);
        }
    }

    #[test]
    fn the_stack_of_a_thread_that_spins() {
        let spinning = thread::Builder::new().name("spins-77".to_owned()).spawn(spins_until_it_is_stopped).unwrap();
        let id = loop {
            if let Ok(id) = thread_named("spins-77") {
                break id;
            }
            thread::yield_now();
        };
        // On a host that is busy, the thread may get no CPU time for long.
        let stack = (0..50).find_map(|_| of_thread(id).ok());
        STOPPED.store(true, Ordering::Relaxed);
        spinning.join().unwrap();
        let stack = stack.unwrap();
        assert!(stack.iter().any(|name| name.contains("spins_until_it_is_stopped")), "{stack:#?}");
        assert_eq!(of_thread(id).unwrap_err().to_string(), "the thread has ended");
        assert_eq!(thread_named("spins-77").unwrap_err().to_string(), "its thread is gone");
    }

    #[test]
    fn a_signal_that_is_forbidden() {
        let why = not_sent(&io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(why.starts_with("a seccomp filter or a security module forbids"), "{why}");
    }

    #[test]
    fn what_a_thread_does_that_does_not_answer() {
        // SAFETY: gettid needs nothing.
        let own = unsafe { libc::gettid() };
        let why = instead(own);
        assert!(why.contains("it could run and gets no CPU time"), "{why}");
        // There is no such thread here.
        assert!(instead(i32::MAX).ends_with("/proc says nothing of it"));
    }

    #[test]
    fn names_are_readable() {
        let check = |symbol: &str, expect: &str| assert_eq!(readable(symbol), expect);
        check("_ZN3net5stack7handler17h0123456789abcdefE", "net::stack::handler");
        check("_RNvNtCs8aBc1_3net5stack7handler", "net::stack::handler");
        check("_RNCNvMs_NtCsd0_5proxy6driverNtB4_6Driver3run0B6_", "proxy::driver::Driver::run");
        check("epoll_wait", "epoll_wait");
        check("_ZN99short", "_ZN99short");
    }
}
