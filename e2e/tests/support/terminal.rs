//! A terminal (a pty): a program runs on it, and the test is the person in front of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use testkit::{PATIENCE, Program};

/// What begins a frame, and what ends it.
const FRAME: &str = "\x1b[H";
const FRAME_END: &str = "\x1b[J";

pub struct Terminal {
    person: File,
    /// Kept open, so that its modes can be read when the program has ended.
    program: OwnedFd,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    pub fn open(columns: u16, lines: u16) -> Self {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let program = ioctl_tiocgptpeer(&person, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let person = File::from(person);
        let mut reading = person.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reading.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let terminal = Self { person, program, output, seen: String::new() };
        terminal.resize(columns, lines);
        terminal
    }

    pub fn run(&self, name: &str, command: &mut Command) -> Program {
        let end = || self.program.try_clone().unwrap();
        Program::spawn_on_own_stdio(name, command.stdin(end()).stdout(end())).unwrap()
    }

    /// The program is not told: it is not in the foreground of a session. Send it SIGWINCH, as the kernel would.
    pub fn resize(&self, columns: u16, lines: u16) {
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.program, size).unwrap();
    }

    pub fn press(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).unwrap();
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(&self.program).unwrap()
    }

    /// Everything that the program has written so far, once it has written `text`.
    pub fn shows(&mut self, text: &str) -> &str {
        self.read_until(&format!("{text:?}"), |seen| seen.contains(text));
        &self.seen
    }

    /// The lines of the next frame that is as wanted. What was drawn before is forgotten.
    pub fn frame(&mut self, what: &str, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.seen.clear();
        self.read_until(what, |seen| whole_frames(seen).any(|frame| is_wanted(&frame)));
        whole_frames(&self.seen).find(|frame| is_wanted(frame)).unwrap()
    }

    fn read_until(&mut self, what: &str, is_there: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there(&self.seen) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("the terminal never shows {what} ({error}): {:?}", self.seen),
            }
        }
    }
}

/// Each as its lines, without the control sequences between them.
fn whole_frames(seen: &str) -> impl Iterator<Item = Vec<String>> {
    let frames = seen.split(FRAME).skip(1).filter_map(|rest| Some(rest.split_once(FRAME_END)?.0));
    frames.map(|frame| frame.split("\r\n").map(|line| line.replace("\x1b[K", "")).collect())
}
