//! Checks by the program's own help texts that it has the sub-commands and options of a command.

use std::collections::HashMap;

use super::support::run;

/// Words that end a command within a line.
const ENDS: [&str; 9] = ["|", "||", "&", "&&", ";", ">", ">>", "<", "#"];
/// Words that a command may follow.
const BEFORE: [&str; 8] = ["sudo", "--", "|", "||", "&", "&&", ";", "exec"];

/// Help texts by the words of the sub-command.
#[derive(Default)]
pub struct Commands(HashMap<Vec<String>, String>);

impl Commands {
    /// The errors in the `steelyard` commands of `text`.
    pub fn wrong(&mut self, text: &str) -> Vec<String> {
        let text = text.replace("\\\n", " ");
        text.lines().flat_map(commands_of).filter_map(|words| self.wrong_command(&words).err()).collect()
    }

    fn wrong_command(&mut self, words: &[String]) -> Result<(), String> {
        let mut path = Vec::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next_if(|word| self.has_sub_command(&path, word)) {
            path.push(word.clone());
        }
        let shown = || format!("steelyard {}", path.join(" "));
        if let Some(word) = words.peek()
            && !word.starts_with('-')
            && !sub_commands(self.help(&path)).is_empty()
            && path != ["load"]
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        {
            return Err(format!("`{}` has no sub-command `{word}`", shown().trim_end()));
        }
        if path == ["load"] {
            path.push("http".to_owned());
        }
        for word in words {
            let option = word.split('=').next().unwrap_or_default();
            let is_option = option.starts_with('-') && option.len() > 1 && option != "--";
            if is_option && !has_option(self.help(&path), option) {
                return Err(format!("`steelyard {}` has no option `{option}`", path.join(" ")));
            }
        }
        Ok(())
    }

    fn has_sub_command(&mut self, path: &[String], word: &str) -> bool {
        sub_commands(self.help(path)).contains(&word)
    }

    fn help(&mut self, path: &[String]) -> &str {
        self.0.entry(path.to_vec()).or_insert_with(|| {
            let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
            run(&words).stdout
        })
    }
}

/// The first words of the lines below `Commands:`.
fn sub_commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.trim().is_empty());
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    lines.filter(is_name).filter_map(|line| line.split_whitespace().next()).collect()
}

fn has_option(help: &str, option: &str) -> bool {
    if option == "--help" || option == "--version" {
        return true;
    }
    // `-c64` is `-c 64`.
    let short = !option.starts_with("--");
    let option = if short { option.get(..2).unwrap_or(option) } else { option };
    help.match_indices(option).any(|(at, _)| {
        let before = help[..at].chars().next_back().is_none_or(|c| !c.is_ascii_alphanumeric() && c != '-');
        let after = help[at + option.len()..].chars().next().is_none_or(|c| !c.is_ascii_alphanumeric() && c != '-');
        before && after
    })
}

/// The words of each `steelyard` command in a line, without the program's name.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let begins = |index: usize| {
        let before = index.checked_sub(1).and_then(|before| words.get(before));
        words[index] == "steelyard" && before.is_none_or(|before| BEFORE.contains(before) || before.ends_with(';'))
    };
    let starts = (0..words.len()).filter(|index| begins(*index));
    let command = |start: usize| {
        let words = words[start + 1..].iter().take_while(|word| !ENDS.contains(word) && !word.starts_with('#'));
        words.map(|word| word.trim_matches(['"', '\'', ';', ')', '(', '[', ']']).to_owned()).collect()
    };
    starts.map(command).collect()
}

#[test]
fn commands_are_found_in_a_line() {
    let check = |line: &str, expect: &[&[&str]]| assert_eq!(commands_of(line), expect, "{line}");
    check("steelyard check -c a.yaml", &[&["check", "-c", "a.yaml"]]);
    check("sudo steelyard reload && steelyard status | head  # look", &[&["reload"], &["status"]]);
    check("kubectl exec x -- steelyard status", &[&["status"]]);
    check("systemctl reload steelyard", &[]);
}

#[test]
fn what_the_program_lacks_is_found() {
    let mut commands = Commands::default();
    let mut check = |text: &str, expect: &[&str]| assert_eq!(commands.wrong(text), expect, "{text}");
    check("steelyard check -c a.yaml", &[]);
    check("steelyard lab report DIR --keep lab/runs/NAME", &[]);
    check("steelyard endpoint drain 10.0.0.7:8080 \\\n    --cluster web", &[]);
    check("steelyard load http://127.0.0.1:8080/ -c 8", &[]);
    check("steelyard chek -c a.yaml", &["`steelyard` has no sub-command `chek`"]);
    check("steelyard vip attach", &["`steelyard vip` has no sub-command `attach`"]);
    check("steelyard check --strict", &["`steelyard check` has no option `--strict`"]);
}
