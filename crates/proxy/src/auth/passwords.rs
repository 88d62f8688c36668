//! Checks passwords against their hashes, on threads of its own.
//!
//! A check takes up to seconds of CPU time by design. A worker would serve nothing else meanwhile, so no worker makes one. It hands the check
//! over and learns the result from a channel. The queue is bounded, in total and for each client, and clients take turns: a client that tries
//! many passwords delays others by one check for each of theirs. The threads have a lower priority than the workers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use argon2::{Argon2, PasswordVerifier};
use aws_lc_rs::digest;
use md5::{Digest, Md5};
use model::{PasswordHash, Secret};
use sha_crypt::ShaCrypt;
use telemetry::Reason;
use tokio::sync::oneshot;

use crate::auth::tag::Tag;
use crate::error::Error;

/// Checks that wait, of all clients. With bcrypt at a cost of 10 and one thread, the last of them waits for about ten seconds.
const WAITING_MAX: usize = 256;

/// Checks of one client that wait. Browsers open six connections, and several users may share an address.
const WAITING_OF_CLIENT_MAX: usize = 32;

/// One thread for this many CPUs, so that passwords never take all of them.
const CPUS_PER_THREAD: usize = 4;

/// Argon2 needs memory for each check that runs, up to [`PasswordHash::ARGON2_KIB_MAX`].
const THREADS_MAX: usize = 4;

/// The nice value of the threads: about a tenth of the CPU time of a worker that competes with one of them.
const NICE: i32 = 10;

/// The last password that was right for a hash, as a keyed hash. It is shared by all routes with that hash, also of later snapshots.
///
/// A password has one hash in the configuration, so this needs no more memory than the configuration, and nobody can push others out.
#[derive(Default)]
pub(crate) struct Known([AtomicU64; 2]);

impl Known {
    pub(crate) fn is(&self, tag: Tag) -> bool {
        let [high, low] = &self.0;
        // If another thread writes it at this moment, the halves of two right passwords may be mixed, which are as hard to guess.
        let known = [high.load(Relaxed), low.load(Relaxed)];
        known != [0; 2] && tag.halves() == known
    }

    fn set(&self, tag: Tag) {
        let halves = tag.halves();
        self.0.iter().zip(halves).for_each(|(atomic, half)| atomic.store(half, Relaxed));
    }
}

/// A password to be checked.
pub(crate) struct Check {
    pub(crate) hash: PasswordHash,
    pub(crate) password: Box<[u8]>,
    /// The client, for turns in the queue.
    pub(crate) client: u64,
    /// What remembers a right password. `None` if there is no such user: then the check takes its time, and its result is false.
    pub(crate) known: Option<(Arc<Known>, Tag)>,
}

impl Check {
    /// Whether it is about the same password of the same user.
    fn is_same(&self, other: &Self) -> bool {
        match (&self.known, &other.known) {
            (Some((known, tag)), Some((others, other))) => Arc::ptr_eq(known, others) && tag.halves() == other.halves(),
            _ => false,
        }
    }

    /// Does the work.
    pub(crate) fn run(&self) -> bool {
        // It may have become known while this waited.
        if self.known.as_ref().is_some_and(|(known, tag)| known.is(*tag)) {
            return true;
        }
        let is_right = is_right(&self.hash, &self.password);
        let Some((known, tag)) = &self.known else { return false };
        if is_right {
            known.set(*tag);
        }
        is_right
    }
}

/// The threads that check passwords, and their queue. The first check starts the threads, and they end when this is dropped.
#[derive(Default)]
pub(crate) struct Passwords {
    shared: Arc<Shared>,
    started: OnceLock<()>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    right: AtomicU64,
    wrong: AtomicU64,
    refused: AtomicU64,
}

/// The checks that wait: `waiting` is their number, and `turns` has each client with checks once.
#[derive(Default)]
struct Queue {
    clients: HashMap<u64, VecDeque<Job>>,
    turns: VecDeque<u64>,
    waiting: usize,
    is_closed: bool,
}

struct Job {
    check: Check,
    /// The requests that wait for it.
    done: Vec<oneshot::Sender<bool>>,
}

impl Job {
    /// Whether no request waits for it any more: the clients have left, or did not want to wait for so long.
    fn is_closed(&self) -> bool {
        self.done.iter().all(oneshot::Sender::is_closed)
    }
}

/// Counts of password checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PasswordCounts {
    /// Checks of right passwords. Later requests with the same password need none.
    pub right: u64,
    /// Checks of wrong passwords and of users that do not exist.
    pub wrong: u64,
    /// Checks that were refused because too many waited, or because there was no memory for them.
    pub refused: u64,
    /// Checks that wait now.
    pub waiting: usize,
}

impl Passwords {
    /// Queues a check.
    ///
    /// # Errors
    /// [`Reason::AuthenticationBusy`]: too many wait.
    pub(crate) fn submit(&self, check: Check) -> Result<oneshot::Receiver<bool>, Error> {
        let (done, result) = oneshot::channel();
        let queued = self.shared.lock().push(Job { check, done: vec![done] });
        if queued {
            self.started.get_or_init(|| self.start());
            self.shared.wake.notify_one();
            Ok(result)
        } else {
            self.shared.refused.fetch_add(1, Relaxed);
            Err(busy())
        }
    }

    fn start(&self) {
        let cpus = net::worker::allowed_cpus().len();
        for index in 0..(cpus / CPUS_PER_THREAD).clamp(1, THREADS_MAX) {
            let shared = self.shared.clone();
            let main = move || {
                // Without this, passwords only take more of the CPU.
                let _ = rustix::process::setpriority_process(None, NICE);
                shared.work();
            };
            if let Err(error) = std::thread::Builder::new().name(format!("passwords-{index}")).spawn(main) {
                tracing::error!(%error, "cannot start a thread for passwords");
            }
        }
    }

    pub(crate) fn counts(&self) -> PasswordCounts {
        let Shared { right, wrong, refused, .. } = &*self.shared;
        let [right, wrong, refused] = [right, wrong, refused].map(|count| count.load(Relaxed));
        PasswordCounts { right, wrong, refused, waiting: self.shared.lock().waiting }
    }
}

/// The error for a request whose password cannot be checked now.
pub(crate) fn busy() -> Error {
    Error::internal(Reason::AuthenticationBusy).retry_after(1)
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code that holds the lock leaves the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            if job.is_closed() {
                continue;
            }
            let Job { check, done } = job;
            // Without the memory, there is no result: dropping `done` says so.
            let Some(_memory) = Memory::promise(check.hash.memory_bytes()) else {
                self.refused.fetch_add(1, Relaxed);
                continue;
            };
            let is_right = check.run();
            (if is_right { &self.right } else { &self.wrong }).fetch_add(1, Relaxed);
            for done in done {
                let _ = done.send(is_right);
            }
        }
    }

    /// Waits for a job; `None` if there will be no more.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            if queue.is_closed {
                return None;
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The memory that a check needs while it runs, counted against `memory_max`.
struct Memory(i64);

impl Memory {
    /// `None` if the process would then use more than it may.
    fn promise(bytes: u64) -> Option<Self> {
        // First its own, so that of two threads that ask at the same time one sees the other.
        let memory = Self(i64::try_from(bytes).unwrap_or(i64::MAX));
        net::memory::note_promised(memory.0);
        is_room(bytes, net::memory::bytes_used(), net::memory::bytes_max()).then_some(memory)
    }
}

/// Whether a check that needs this much may run, if the process then uses `used` and may use `max`.
fn is_room(bytes: u64, used: u64, max: Option<u64>) -> bool {
    bytes == 0 || max.is_none_or(|max| used <= max)
}

impl Drop for Memory {
    fn drop(&mut self) {
        net::memory::note_promised(-self.0);
    }
}

impl Queue {
    /// Returns false if there is no room. A check that the same client already waits for needs none: a browser sends the requests of a page
    /// all at once.
    fn push(&mut self, job: Job) -> bool {
        let client = job.check.client;
        let same = self.clients.get_mut(&client).and_then(|jobs| {
            let mut jobs = jobs.iter_mut();
            jobs.find(|waiting| waiting.check.is_same(&job.check))
        });
        if let Some(same) = same {
            same.done.extend(job.done);
            return true;
        }
        if !self.has_room(client) {
            self.remove_closed();
            if !self.has_room(client) {
                return false;
            }
        }
        let jobs = self.clients.entry(client).or_default();
        if jobs.is_empty() {
            self.turns.push_back(client);
        }
        jobs.push_back(job);
        self.waiting += 1;
        true
    }

    fn has_room(&self, client: u64) -> bool {
        self.waiting < WAITING_MAX && self.clients.get(&client).is_none_or(|jobs| jobs.len() < WAITING_OF_CLIENT_MAX)
    }

    /// Removes the checks that nobody waits for any more. Otherwise a client that leaves and comes back would find its places taken.
    fn remove_closed(&mut self) {
        self.clients.retain(|_, jobs| {
            jobs.retain(|job| !job.is_closed());
            !jobs.is_empty()
        });
        let clients = &self.clients;
        self.turns.retain(|client| clients.contains_key(client));
        self.waiting = self.clients.values().map(VecDeque::len).sum();
    }

    fn pop(&mut self) -> Option<Job> {
        let client = self.turns.pop_front()?;
        let jobs = self.clients.get_mut(&client)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.clients.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.waiting -= usize::from(job.is_some());
        job
    }
}

/// Whether this password has this hash.
fn is_right(hash: &PasswordHash, password: &[u8]) -> bool {
    if password.len() > hash.password_bytes_max() {
        return false;
    }
    match hash {
        PasswordHash::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
        PasswordHash::Argon2(hash) => {
            argon2::PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
        }
        PasswordHash::Md5 { magic, salt, hash } => {
            is_same(md5_crypt(password, magic.as_bytes(), salt.as_bytes()).as_bytes(), hash.as_bytes())
        }
        PasswordHash::ShaCrypt { text, .. } => ShaCrypt::SHA512.verify_password(password, text.as_str()).is_ok(),
        PasswordHash::Sha1 { sum, salt } => {
            let mut found = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
            [password, salt].into_iter().for_each(|part| found.update(part));
            is_same(found.finish().as_ref(), sum)
        }
        PasswordHash::Plain(Secret(expect)) => is_same(password, expect.as_bytes()),
    }
}

fn is_same(one: &[u8], other: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(one, other).is_ok()
}

/// The MD5-based crypt(3) of FreeBSD, and Apache's variant of it (`apr_md5_encode`), which differs in `magic` alone: the 22 characters after the
/// salt.
fn md5_crypt(password: &[u8], magic: &[u8], salt: &[u8]) -> String {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut outer = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    for piece in password.chunks(inner.len()) {
        outer.update(inner.get(..piece.len()).unwrap_or_default());
    }
    let mut bits = password.len();
    while bits > 0 {
        // The original means the first byte of a buffer that it has just cleared.
        let first = password.get(..1).unwrap_or_default();
        outer.update(if bits & 1 == 1 { &[0][..] } else { first });
        bits >>= 1;
    }
    let mut sum = outer.finalize();
    for round in 0..1000 {
        let mut next = Md5::new();
        next.update(if round % 2 == 1 { password } else { sum.as_slice() });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if round % 2 == 1 { sum.as_slice() } else { password });
        sum = next.finalize();
    }
    let byte = |index: usize| u32::from(sum.get(index).copied().unwrap_or_default());
    let mut text = String::with_capacity(22);
    for [high, middle, low] in [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]] {
        put(&mut text, byte(high) << 16 | byte(middle) << 8 | byte(low), 4);
    }
    put(&mut text, byte(11), 2);
    text
}

/// Appends a number in the base 64 of crypt(3), beginning with the lowest digit.
fn put(text: &mut String, mut number: u32, digits: usize) {
    const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for _ in 0..digits {
        text.push(DIGITS.get(number as usize & 63).copied().unwrap_or_default() as char);
        number >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(client: u64) -> (Job, oneshot::Receiver<bool>) {
        let hash = PasswordHash::parse("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=").unwrap();
        let check = Check { hash, password: b"password"[..].into(), client, known: None };
        let (done, result) = oneshot::channel();
        (Job { check, done: vec![done] }, result)
    }

    #[test]
    fn hashes_of_other_tools_are_checked() {
        // From `openssl passwd -apr1`, `-1`, `-5` and `-6`, crypt(3), `openssl dgst -sha1` and the tests of the reference implementation of
        // argon2.
        let long = "a much longer password than sixteen bytes";
        for (hash, password) in [
            ("$apr1$zxA9Rk1p$nUGypAyykq1cGimy5OFQd1", "letmein"),
            ("$apr1$zxA9Rk1p$KEBfJIPnj5StCHAPiDk/5.", ""),
            ("$apr1$zxA9Rk1p$smQR8PBBal.4A/a/5wEaS1", long),
            ("$2y$05$abcdefghijklmnopqrstuuKwWV7ESJpzKzf9FQg57dBvMuv92X9HS", "letmein"),
            ("$2b$04$abcdefghijklmnopqrstuuPT0cs.zGMMB9aUG3xKmxLeI//6s0m5C", "letmein"),
            ("$1$zxA9Rk1p$Ji5qgHGWwoFDJ.HAI1RkC/", "letmein"),
            ("$1$z$ly81Jna/sALocpLa/0hVV.", ""),
            ("$1$zxA9Rk1p$irnkgq.Buwfdlk2Uf87Fg.", long),
            ("$5$zxA9Rk1p$yKr9gNZz1X45gHmkzE3MMX5MSBsrrX8s8bIXgmy6N79", "letmein"),
            ("$5$zxA9Rk1pzxA9Rk1p$6Iw84Bw6W..VCmFdu2VgS.cfqj/dci0iTeB0UnWN5K9", long),
            ("$5$rounds=1000$zx$iY57cIBXkEmXfy5YODWhRCDLjt7qrHsaCzQC4d5tanB", ""),
            (
                "$6$zxA9Rk1p$FmTe1atf1oe0/02BWJTq8cNLETqAzeomn295IPo5PdUV6afAsfZwJxpdzYVABsHW725kzR5AhpYda/IhJOqo31",
                "letmein",
            ),
            (
                "$6$zxA9Rk1pzxA9Rk1p$BveOZkKteV0uIrycVpsj5OIyWwlcuP9Em54sMzTN..u6Jja3U/MzjESdwPokBsgISlR3cvfcXqCpksQ6vfans.",
                long,
            ),
            (
                "$6$rounds=1234$zx$HEt5.gwCL7VVZBXpj6sur6MQjBJW6tJh3LA9v5kOHaWD5qhF1OQbYO2dYS0ORuavLpf18PqlpS6gVXICapMqy0",
                "letmein",
            ),
            ("{SSHA}xCoAhsXWiKbSyTjqWPV5SBDy7r1zYWx0", "letmein"),
            ("{PLAIN}letmein", "letmein"),
            ("{SHA}t6h1/B6iKLkGEEG3zsS9PFKrPOM=", "letmein"),
            ("$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "password"),
        ] {
            let parsed = PasswordHash::parse(hash).unwrap();
            assert!(is_right(&parsed, password.as_bytes()), "{hash}");
            for wrong in ["another", "letmei", "letmeinn", " "] {
                assert!(!is_right(&parsed, wrong.as_bytes()), "{hash}: {wrong}");
            }
        }
    }

    #[test]
    fn a_password_that_is_too_long_for_crypt_is_wrong() {
        for (bytes, expect) in [(511, true), (512, false)] {
            let password = b"a".repeat(bytes);
            let hash = PasswordHash::parse(&format!("$1$salt${}", md5_crypt(&password, b"$1$", b"salt"))).unwrap();
            assert_eq!(is_right(&hash, &password), expect, "{bytes}");
        }
        // From crypt(3).
        let of_511 =
            "$6$rounds=1000$zx$fWODraOAOAkrwpwyNW8JgKZoozyL3MlfvywXFAYR1zvn89NkfGHb1ojUpUuGAUVTvtdDS9OZGNPxgdTUGgVCa0";
        assert!(is_right(&PasswordHash::parse(of_511).unwrap(), &b"a".repeat(511)));
    }

    #[test]
    fn clients_take_turns() {
        let mut queue = Queue::default();
        let mut waiting = Vec::new();
        for client in [1, 1, 1, 2, 3, 2] {
            let (job, result) = job(client);
            assert!(queue.push(job));
            waiting.push(result);
        }
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|job| job.check.client).collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
        assert!(queue.clients.is_empty() && queue.turns.is_empty() && queue.waiting == 0);
    }

    #[test]
    fn the_queue_is_bounded_for_each_client_and_for_all() {
        let mut queue = Queue::default();
        let mut waiting = Vec::new();
        let mut push = |queue: &mut Queue, client| {
            let (job, result) = job(client);
            let is_queued = queue.push(job);
            waiting.extend(is_queued.then_some(result));
            is_queued
        };
        let pushed = (0..100).filter(|_| push(&mut queue, 1)).count();
        assert_eq!(pushed, WAITING_OF_CLIENT_MAX);
        // Another client still has room.
        assert!(push(&mut queue, 2));
        let rest = (3..1000).filter(|client| push(&mut queue, *client)).count();
        assert_eq!(rest, WAITING_MAX - WAITING_OF_CLIENT_MAX - 1);
        assert!(queue.pop().is_some() && push(&mut queue, 4711));
        assert!(!push(&mut queue, 4712));
        // Nobody waits any more, so there is room for as many again.
        waiting.clear();
        let (job, _result) = job(1);
        assert!(queue.push(job));
        assert_eq!((queue.waiting, queue.clients.len(), queue.turns.len()), (1, 1, 1));
    }

    #[test]
    fn one_check_is_for_all_requests_of_a_client_with_the_same_password() {
        let known = Arc::<Known>::default();
        let check = |password: &[u8]| Check {
            known: Some((known.clone(), Tag::of(&[password]).unwrap())),
            password: password.into(),
            ..job(1).0.check
        };
        let mut queue = Queue::default();
        let mut waiting = Vec::new();
        for password in [&b"password"[..], b"wrong"].iter().cycle().take(200) {
            let (done, result) = oneshot::channel();
            assert!(queue.push(Job { check: check(password), done: vec![done] }));
            waiting.push(result);
        }
        assert_eq!(queue.waiting, 2);
        let mut results = |is_right: bool| {
            let Job { check, done } = queue.pop().unwrap();
            assert_eq!((check.run(), done.len()), (is_right, 100));
        };
        results(true);
        results(false);
        // It needs no hash once the password is known, whatever the hash.
        let other = PasswordHash::parse("{PLAIN}nobody's").unwrap();
        assert!(Check { hash: other, ..check(b"password") }.run());
    }

    #[test]
    fn a_check_does_not_run_without_the_memory_for_it() {
        // `used` has the memory of the check in it.
        assert!(is_room(10, 100, Some(100)) && is_room(10, 1000, None));
        assert!(!is_room(10, 101, Some(100)));
        // Other hashes need none.
        assert!(is_room(0, 101, Some(100)));
    }

    #[test]
    fn results_arrive_and_a_client_that_has_left_is_skipped() {
        let passwords = Passwords::default();
        let (Job { check, .. }, _) = job(1);
        let known = Arc::<Known>::default();
        let tag = Tag::of(&[b"password"]).unwrap();
        let check = Check { known: Some((known.clone(), tag)), ..check };
        assert!(!known.is(tag));
        assert!(passwords.submit(check).unwrap().blocking_recv().unwrap());
        assert!(known.is(tag) && !known.is(Tag::of(&[b"another"]).unwrap()));
        // There is no such user.
        let result = passwords.submit(job(1).0.check).unwrap();
        assert!(!result.blocking_recv().unwrap());
        drop(passwords.submit(job(1).0.check).unwrap());
        let PasswordCounts { right, wrong, refused, .. } = passwords.counts();
        assert!((right, refused) == (1, 0) && wrong >= 1);
    }
}
