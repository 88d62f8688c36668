//! What failed tests printed. It is told again with the verdict: servers often keep only the end of a log, and what a test
//! said stands an hour of other output before that.

use std::collections::VecDeque;

/// Lines kept of one test: its last, where the panic of most tests is.
const LINES_MAX: usize = 60;
/// Tests whose output is kept. When more fail, the first tell why.
const TESTS_MAX: usize = 8;
/// Characters kept of a line.
const LINE_MAX: usize = 400;

/// The ends of the outputs of failed tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FailedOutput {
    tests: Vec<Test>,
    /// Whether lines belong to the last test.
    is_open: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    lines: VecDeque<String>,
}

impl FailedOutput {
    /// Reads one line of `cargo test`: between `---- NAME stdout ----` and the next such line, or the list `failures:`, is what the
    /// test printed.
    pub fn handle_line(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.is_open = self.tests.len() < TESTS_MAX;
            if self.is_open {
                self.tests.push(Test { name: name.to_owned(), lines: VecDeque::new() });
            }
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.is_open = false;
        } else if let Some(test) = self.tests.last_mut()
            && self.is_open
        {
            if test.lines.len() == LINES_MAX {
                test.lines.pop_front();
            }
            test.lines.push_back(line.chars().take(LINE_MAX).collect());
        }
    }

    /// A paragraph for each test; empty if none said anything.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Test { name, lines } in &self.tests {
            text += &format!("\n\n  {name} printed at its end:\n");
            lines.iter().for_each(|line| text += &format!("    {line}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(output: &str) -> String {
        let mut said = FailedOutput::default();
        output.lines().for_each(|line| said.handle_line(line));
        said.text()
    }

    #[test]
    fn the_output_of_failed_tests_is_kept() {
        let output = "running 3 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nleft: 1\n\n---- c::d stdout ----\n right: 2\n\n\n\
            failures:\n    b\n    c::d\n\ntest result: FAILED. 1 passed; 2 failed;\nlater";
        let text = said(output);
        assert_eq!(
            text,
            "\n\n  b printed at its end:\n    left: 1\n    \n\n\n  c::d printed at its end:\n     right: 2\n    \n    \n"
        );
    }

    #[test]
    fn only_the_end_of_a_long_output() {
        let lines: String = (0..1000).map(|n| format!("line {n} {}\n", "\u{e9}".repeat(1000))).collect();
        let text = said(&format!("---- b stdout ----\n{lines}"));
        assert_eq!(text.lines().count(), LINES_MAX + 3);
        assert!(text.contains("line 999 ") && !text.contains("line 939 "), "{text}");
        assert!(text.chars().count() < LINES_MAX * (LINE_MAX + 8), "{text}");
    }

    #[test]
    fn nothing_of_tests_that_pass() {
        assert_eq!(said("test a ... ok\ntest result: ok. 1 passed; 0 failed;"), "");
    }
}
