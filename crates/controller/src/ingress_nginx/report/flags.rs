//! The flags of ingress-nginx, as the arguments of its workloads have them.

use serde_json::Value;

use super::super::catalogue::Verdict;
use super::super::options::FLAGS;
use super::super::plan::Finding;
use super::super::prefix::Prefix;
use super::super::value::{self, Form};

/// The flag that names the prefix of the annotations.
const PREFIX_FLAG: &str = "annotations-prefix";

/// The flags of each workload, in their order.
pub(super) struct Flags<'o>(Vec<Vec<(&'o str, &'o str)>>);

impl<'o> Flags<'o> {
    /// Those of the workloads of ingress-nginx among these objects.
    pub(super) fn of(objects: &'o [Value]) -> Self {
        let workloads = objects.iter().filter(|object| object["kind"] == "Deployment" || object["kind"] == "DaemonSet");
        Self(workloads.flat_map(of_workload).collect())
    }

    /// Whether there is such a workload.
    pub(super) fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// The value of a flag. As there, the last one counts.
    pub(super) fn text(&self, name: &str) -> Option<&'o str> {
        let of =
            |flags: &Vec<(&'o str, &'o str)>| flags.iter().rfind(|(known, _)| *known == name).map(|(_, text)| *text);
        self.0.iter().find_map(of)
    }

    /// Whether a flag is there and not off.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.text(name).and_then(value::boolean) == Some(true)
    }

    /// What each workload says of the prefix of the annotations.
    fn prefixes(&self) -> impl Iterator<Item = Option<&'o str>> {
        let Self(all) = self;
        all.iter().map(|flags| flags.iter().rfind(|(name, _)| *name == PREFIX_FLAG).map(|(_, text)| *text))
    }

    /// The prefix of the annotations. Adds a note if there is more than one.
    pub(super) fn prefix(&self, notes: &mut Vec<String>) -> Prefix {
        let first = self.prefixes().next().flatten();
        if self.prefixes().any(|other| other != first) {
            notes.push(format!(
                "several workloads of ingress-nginx read annotations with other prefixes; {} is taken",
                value::cut(first.unwrap_or("that without --annotations-prefix"))
            ));
        }
        first.and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// One for each flag. Where workloads read annotations with different prefixes, those of all but one have no effect here.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.0.iter().flatten().map(|(name, text)| finding(name, text)).collect();
        let taken = self.prefix(&mut Vec::new());
        let has_several = self.prefixes().any(|other| Some(other) != self.prefixes().next());
        for finding in findings.iter_mut().filter(|finding| has_several && finding.key == PREFIX_FLAG) {
            let says = format!(
                "several workloads of ingress-nginx read annotations with other prefixes; those with {taken} alone are read here: give the objects \
                 of one of them"
            );
            (finding.verdict, finding.says) = (Verdict::Refused, says);
        }
        findings
    }
}

fn finding(name: &str, text: &str) -> Finding {
    match FLAGS.iter().find(|flag| flag.name == name) {
        None => Finding::new(name, text, Verdict::NoEffect, "it is not known".to_owned()),
        Some(flag) if flag.verdict == Verdict::Refused && value::boolean(text) == Some(false) => {
            Finding::new(name, text, Verdict::NoEffect, "it is off".to_owned())
        }
        Some(flag) if flag.name == PREFIX_FLAG => match text.parse::<Prefix>() {
            Ok(_) => Finding::new(name, text, flag.verdict, flag.says.to_owned()),
            Err(right) => {
                let says = format!("{right}; annotations with {} were read instead", Prefix::default());
                Finding::new(name, text, Verdict::Refused, says)
            }
        },
        Some(flag) => Finding::new(name, text, flag.verdict, flag.says.to_owned()),
    }
}

/// The flags of each container of a workload that runs ingress-nginx.
fn of_workload(workload: &Value) -> Vec<Vec<(&str, &str)>> {
    let containers = workload["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten();
    let words = containers.map(|container| {
        let part = |name: &str| container[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        part("command").chain(part("args")).collect::<Vec<&str>>()
    });
    let ours = words.filter(|words| words.iter().any(|word| word.contains("nginx-ingress-controller")));
    ours.map(|words| of_words(&words)).collect()
}

/// `--name=value`, `--name value`, or `--name` of a boolean, whose value is never a word of its own.
fn of_words<'o>(words: &[&'o str]) -> Vec<(&'o str, &'o str)> {
    let mut flags = Vec::new();
    let mut rest = words.iter().copied().peekable();
    while let Some(word) = rest.next() {
        let name = word.trim_start_matches('-');
        if name.len() == word.len() || name.is_empty() {
            continue;
        }
        flags.push(match name.split_once('=') {
            Some(flag) => flag,
            None if is_boolean(name) => (name, "true"),
            None => (name, rest.next_if(|next| !next.starts_with('-')).unwrap_or("true")),
        });
    }
    flags
}

fn is_boolean(name: &str) -> bool {
    FLAGS.iter().any(|flag| flag.name == name && matches!(flag.form, Form::Bool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_in_all_forms() {
        let words = [
            "/usr/bin/dumb-init",
            "--",
            "/nginx-ingress-controller",
            "--configmap",
            "edge/nginx",
            "--enable-ssl-passthrough",
            "--annotations-prefix=foo.io",
            "-v=2",
            "--enable-metrics",
            "false",
            "--watch-namespace",
        ];
        let expect = [
            ("configmap", "edge/nginx"),
            ("enable-ssl-passthrough", "true"),
            ("annotations-prefix", "foo.io"),
            ("v", "2"),
            ("enable-metrics", "true"),
            ("watch-namespace", "true"),
        ];
        assert_eq!(of_words(&words), expect);
        let flags = Flags(vec![vec![("a", "1"), ("a", "2")], vec![("a", "3"), ("b", "4")]]);
        assert_eq!((flags.text("a"), flags.text("b"), flags.text("c")), (Some("2"), Some("4"), None));
    }
}
