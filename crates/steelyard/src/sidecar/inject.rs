//! `steelyard sidecar inject`: adds the sidecar to the pods of a manifest, and leaves every other byte of it as it is.

use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

use serde_json::Value as Json;

use super::manifest::{self, Anchors, Node, Place, Value};
use super::pod::{self, Added};
use crate::cli::{InjectedArgs, SidecarInjectArgs};
use crate::exit::Exit;

/// Manifests are written by people.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Runs the command.
pub(super) fn inject(args: &SidecarInjectArgs) -> Exit {
    let name = args.filename.display();
    let text = match read(&args.filename) {
        Ok(text) => text,
        Err(error) => return crate::fail(&format!("cannot read {name}: {error}")),
    };
    match injected(&text, &args.injected) {
        Ok(Injected { text, pods, notes }) => {
            // Standard output has the manifest.
            notes.iter().for_each(|note| eprintln!("steelyard: {}", admin::visible(&format!("{name}: {note}"))));
            eprintln!("steelyard: {name}: {pods} of its pods {} the sidecar", if pods == 1 { "has" } else { "have" });
            // It is not an error if the reader has gone away (`| head`).
            let _ = std::io::stdout().write_all(text.as_bytes());
            Exit::Good
        }
        Err(wrong) => {
            eprintln!("steelyard: {}", admin::visible(&format!("{name}: {wrong}")));
            Exit::BadConfig
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file: Box<dyn Read> =
        if path == Path::new("-") { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(path)?) };
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let limit = FILE_BYTES_MAX >> 20;
        return Err(std::io::Error::other(format!(
            "it is larger than {limit} MiB; inject its objects in several calls"
        )));
    }
    Ok(text)
}

/// A manifest with sidecars.
#[derive(Debug, PartialEq, Eq)]
struct Injected {
    text: String,
    /// How many pods have one.
    pods: usize,
    /// What an operator may have meant otherwise.
    notes: Vec<String>,
}

fn injected(text: &str, args: &InjectedArgs) -> Result<Injected, String> {
    let documents = manifest::read(text)?;
    let anchors = Anchors::new(&documents);
    let added = pod::added(args);
    let mut found =
        Found { text, args, added: &added, anchors: &anchors, pods: Vec::new(), edits: Vec::new(), notes: Vec::new() };
    for document in &documents {
        found.object(anchors.place(document), None)?;
    }
    let Found { pods, edits, notes, .. } = found;
    let output = edited(text, edits);
    if is_as_intended(&documents, &output, &pods, &added) {
        return Ok(Injected { text: output, pods: pods.len(), notes });
    }
    Err("a pod is written in a form that cannot be edited; write its `spec`, `initContainers` and `volumes` as plain lists and mappings, \
         or let kubectl do that (kubectl apply --dry-run=client -o yaml)"
        .to_owned())
}

/// A part of the text, and what takes its place.
type Edit = (Range<usize>, String);

fn edited(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let mut out = String::with_capacity(text.len() + edits.iter().map(|(_, new)| new.len()).sum::<usize>());
    let mut done = 0;
    for (range, new) in edits {
        out.push_str(text.get(done..range.start).unwrap_or_default());
        out.push_str(&new);
        done = range.end;
    }
    out.push_str(text.get(done..).unwrap_or_default());
    out
}

/// Whether a text has what the documents have, and the sidecar in these pods.
fn is_as_intended(documents: &[Node], text: &str, pods: &[&Node], added: &Added) -> bool {
    let Ok(new) = manifest::read(text) else { return false };
    let differs = |old: &Node, new: &Node| {
        pods.iter().any(|pod| std::ptr::eq(*pod, old)).then(|| has_added(old, new, added).unwrap_or(false))
    };
    manifest::are_same(documents, &new, &differs)
}

/// Whether a pod has what the old one has, and what is added.
fn has_added(old: &Node, new: &Node, added: &Added) -> Option<bool> {
    let (Value::Map { pairs: old, .. }, Value::Map { pairs: new, .. }) = (&old.value, &new.value) else { return None };
    let nothing = |_: &Node, _: &Node| None;
    let is_key =
        |node: &Node, name: &str| node.is_bare() && matches!(&node.value, Value::Scalar { text, .. } if text == name);
    let list_of = |pairs: &'_ [(Node, Node)], name: &str| pairs.iter().position(|(key, _)| is_key(key, name));
    for (name, entries) in added {
        let Value::List { items, .. } = &new.get(list_of(new, name)?)?.1.value else { return None };
        let rest = items.get(entries.len()..)?;
        let kept: &[Node] = match list_of(old, name).and_then(|at| old.get(at)) {
            None => &[],
            Some((_, value)) if value.is_null() => &[],
            Some((_, value)) => match &value.value {
                Value::List { items, .. } => items.get(items.len().checked_sub(rest.len())?..)?,
                _ => return None,
            },
        };
        let is_added = items.iter().zip(entries).all(|(item, entry)| item.is_json(entry));
        if !is_added || !manifest::are_same(kept, rest, &nothing) {
            return None;
        }
    }
    let others = |pairs: &'_ [(Node, Node)]| -> Vec<usize> {
        let is_other =
            |at: &usize| pairs.get(*at).is_some_and(|(key, _)| !added.iter().any(|(name, _)| is_key(key, name)));
        (0..pairs.len()).filter(is_other).collect()
    };
    let (old_others, new_others) = (others(old), others(new));
    let same = |(at, new_at): (&usize, &usize)| {
        let (Some(old), Some(new)) = (old.get(*at), new.get(*new_at)) else { return false };
        old.0.is_same(&new.0, &nothing) && old.1.is_same(&new.1, &nothing)
    };
    Some(old_others.len() == new_others.len() && old_others.iter().zip(&new_others).all(same))
}

/// The pods of a manifest that are found so far, and what is to be changed for them.
struct Found<'m> {
    text: &'m str,
    args: &'m InjectedArgs,
    added: &'m Added,
    anchors: &'m Anchors<'m>,
    /// The `spec` of each pod that gets the sidecar.
    pods: Vec<&'m Node>,
    edits: Vec<Edit>,
    notes: Vec<String>,
}

impl<'m> Found<'m> {
    /// Looks for pods in an object. `usual` is its kind if it names none, as in a list of one kind.
    fn object(&mut self, object: Place<'m>, usual: Option<&str>) -> Result<(), String> {
        let anchors = self.anchors;
        let word = |of: Place<'m>, key: &str| -> Result<Option<String>, String> {
            let Some(place) = anchors.get(of, key)? else { return Ok(None) };
            Ok(anchors.json(place)?.as_str().map(str::to_owned))
        };
        let at = |why: String| format!("line {}: {why}", manifest::line(self.text, object.node.start));
        let kind = word(object, "kind").map_err(at)?.or_else(|| usual.map(str::to_owned)).unwrap_or_default();
        if let Some(each) = kind.strip_suffix("List")
            && let Some(items) = anchors.get(object, "items").map_err(at)?
            && let Value::List { items: all, .. } = &items.node.value
        {
            for item in all {
                let item = anchors.place(item);
                let item = Place { is_shared: item.is_shared || items.is_shared, ..item };
                self.object(item, Some(each).filter(|each| !each.is_empty()))?;
            }
            return Ok(());
        }
        let metadata = anchors.get(object, "metadata").map_err(at)?;
        let name = match metadata {
            Some(metadata) => word(metadata, "name").map_err(at)?.unwrap_or_default(),
            None => String::new(),
        };
        let name = format!("{kind} {name} (line {})", manifest::line(self.text, object.node.start));
        self.named(object, &kind, &name).map_err(|why| format!("{name}: {why}"))
    }

    fn named(&mut self, object: Place<'m>, kind: &str, name: &str) -> Result<(), String> {
        let is_known = |kind: &str| {
            matches!(kind, "DaemonSet" | "Deployment" | "Job" | "ReplicaSet" | "ReplicationController" | "StatefulSet")
        };
        let path: &[&str] = match kind {
            "Pod" => &[],
            "CronJob" => &["spec", "jobTemplate", "spec", "template"],
            // Also for those that are not known, to say so.
            _ => &["spec", "template"],
        };
        let mut template = object;
        for key in path {
            let Some(next) = self.anchors.get(template, key)? else { return self.is_without_pod(object, kind, name) };
            template = next;
        }
        if !self.is_marked(template)? {
            return if path.is_empty() { Ok(()) } else { self.is_without_pod(object, kind, name) };
        }
        if !path.is_empty() && kind != "CronJob" && !is_known(kind) {
            self.notes.push(format!(
                "{name}: its pods get no sidecar, because `inject` does not know this kind; the webhook serves it"
            ));
            return Ok(());
        }
        let Some(spec) = self.anchors.get(template, "spec")? else { return Err("its pod has no `spec`".to_owned()) };
        self.pod(spec)
    }

    fn is_marked(&self, template: Place<'m>) -> Result<bool, String> {
        let Some(metadata) = self.anchors.get(template, "metadata")? else { return Ok(false) };
        pod::asks(&self.anchors.json(metadata)?, None)
    }

    /// Says so if a mark stands where nothing reads it.
    fn is_without_pod(&mut self, object: Place<'m>, kind: &str, name: &str) -> Result<(), String> {
        // Of a namespace, the webhook reads it.
        if kind != "Namespace" && self.is_marked(object).unwrap_or(false) {
            self.notes.push(format!(
                "{name}: `{}` has no effect here; put it into the `metadata` of the pod's template",
                pod::MARK
            ));
        }
        Ok(())
    }

    /// Adds the sidecar to the `spec` of a pod.
    fn pod(&mut self, spec: Place<'m>) -> Result<(), String> {
        let json = self.anchors.json(spec)?;
        pod::check(&json, self.args)?;
        if spec.is_shared {
            return Err(shared("spec"));
        }
        let Value::Map { pairs, is_flow } = &spec.node.value else {
            return Err("its `spec` is not a mapping".to_owned());
        };
        let mut absent = Vec::new();
        for (key, entries) in self.added {
            let earlier = pod::earlier(json.get(key).unwrap_or(&Json::Null))?;
            match self.anchors.get(spec, key)? {
                None => absent.push((*key, &entries[..])),
                Some(list) if list.is_shared => return Err(shared(key)),
                Some(list) => {
                    let name = pairs
                        .iter()
                        .map(|(name, value)| (name, value))
                        .find(|(_, value)| std::ptr::eq(*value, list.node));
                    let edit = name.and_then(|(name, _)| self.to_list(name, list.node, entries, earlier));
                    self.edits.push(edit.ok_or_else(|| format!("`{key}` is not a list"))?);
                }
            }
        }
        self.edits.extend(self.to_map(spec.node, pairs.first().map(|(key, _)| key), *is_flow, &absent));
        self.pods.push(spec.node);
        Ok(())
    }

    /// Puts entries in front of a list, in place of as many of an earlier call.
    fn to_list(&self, key: &Node, list: &Node, entries: &[Json], earlier: usize) -> Option<Edit> {
        if list.is_null() {
            let colon = key.end + self.text.get(key.end..)?.find(':')? + 1;
            // What is not written has no place of its own.
            let is_written = matches!(&list.value, Value::Scalar { text, .. } if !text.is_empty());
            let end = if is_written { list.end } else { colon };
            return Some((colon..end, format!(" [{}]", in_brackets(entries))));
        }
        let Value::List { items, is_flow } = &list.value else { return None };
        let (first, last) = (items.first(), earlier.checked_sub(1).and_then(|last| items.get(last)));
        Some(match (is_flow, first, last) {
            (true, Some(first), Some(last)) => (first.start..last.end, in_brackets(entries)),
            (true, first, _) => {
                let at = list.start + self.text.get(list.start..)?.find('[')? + 1;
                (at..at, format!("{}{}", in_brackets(entries), if first.is_some() { ", " } else { "" }))
            }
            (false, Some(first), last) => {
                let dash = self.text.get(..first.start)?.trim_end_matches(' ').strip_suffix('-')?.len();
                let column = self.column(dash);
                let pad = " ".repeat(column);
                let new: Vec<String> = entries.iter().map(|entry| block(entry, column + 2)).collect();
                let new = new.join(&format!("\n{pad}- "));
                match last {
                    Some(last) => (first.start..last.end, new),
                    None => (dash..dash, format!("- {new}\n{pad}")),
                }
            }
            (false, None, _) => return None,
        })
    }

    /// Puts lists in front of the other keys of a map.
    fn to_map(&self, map: &Node, first: Option<&Node>, is_flow: bool, lists: &[(&str, &[Json])]) -> Option<Edit> {
        if lists.is_empty() {
            return None;
        }
        if is_flow {
            let at = map.start + self.text.get(map.start..)?.find('{')? + 1;
            let lists: Vec<String> =
                lists.iter().map(|(key, entries)| format!("\"{key}\": [{}]", in_brackets(entries))).collect();
            return Some((at..at, format!("{}{}", lists.join(", "), if first.is_some() { ", " } else { "" })));
        }
        let at = first?.start;
        let column = self.column(at);
        let pad = " ".repeat(column);
        let mut new = String::new();
        for (key, entries) in lists {
            new += &format!("{key}:\n");
            entries.iter().for_each(|entry| new += &format!("{pad}- {}\n", block(entry, column + 2)));
            new += &pad;
        }
        Some((at..at, new))
    }

    /// How many characters are in front of this one in its line.
    fn column(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or_default();
        before.rsplit('\n').next().unwrap_or_default().chars().count()
    }
}

/// Entries of a list in brackets.
fn in_brackets(entries: &[Json]) -> String {
    entries.iter().map(Json::to_string).collect::<Vec<_>>().join(", ")
}

fn shared(key: &str) -> String {
    format!("its `{key}` comes from an anchor that other values have, too (`&`, `*`, `<<`); write it out")
}

/// A value in lines, of which those after the first are indented. Scalars are those of JSON, which mean the same to every reader.
fn block(value: &Json, indent: usize) -> String {
    let pad = " ".repeat(indent);
    let is_nested = |value: &Json| match value {
        Json::Object(map) => !map.is_empty(),
        Json::Array(items) => items.iter().any(Json::is_object),
        _ => false,
    };
    match value {
        Json::Object(map) if !map.is_empty() => {
            let line = |(key, value): (&String, &Json)| match value {
                Json::Object(_) if is_nested(value) => format!("{key}:\n{pad}  {}", block(value, indent + 2)),
                Json::Array(items) if is_nested(value) => {
                    let items: Vec<String> =
                        items.iter().map(|item| format!("\n{pad}- {}", block(item, indent + 2))).collect();
                    format!("{key}:{}", items.concat())
                }
                _ => format!("{key}: {value}"),
            };
            map.iter().map(line).collect::<Vec<_>>().join(&format!("\n{pad}"))
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::pod::{CONFIG_VOLUME, INIT, SIDECAR, TLS_VOLUME};
    use super::*;

    fn args() -> InjectedArgs {
        InjectedArgs {
            image: "steelyard:1".into(),
            config_map: "web".into(),
            secret: Some("web-tls".into()),
            user: 1337,
            inbound_port: 15_006,
        }
    }

    fn objects(text: &str) -> Vec<Json> {
        let documents = manifest::read(text).unwrap();
        let anchors = Anchors::new(&documents);
        documents.iter().map(|document| anchors.json(anchors.place(document)).unwrap()).collect()
    }

    /// Injects, and returns the lines that are new. All others must be there, in the same order.
    #[track_caller]
    fn new_lines(text: &str) -> Vec<String> {
        let Injected { text: out, .. } = injected(text, &args()).unwrap();
        let mut old = text.lines().peekable();
        let new: Vec<String> = out.lines().filter(|line| old.next_if_eq(line).is_none()).map(str::to_owned).collect();
        assert_eq!(old.collect::<Vec<_>>(), [""; 0], "{out}");
        new
    }

    const DEPLOYMENT: &str = "\
# The web site.
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {big: 12345678901234567890123, date: 2001-12-14}}
spec:
  template:
    metadata:
      annotations: {steelyard.io/sidecar: enabled} # yes
      labels: {yes: y, octal: 0o17, float: 1e3, none: ~}
    spec:
      # Comments stay.
      containers:
      - name: web
        image: &image \"web:1\"
        command:
        - |
          #!/bin/sh
            exec true

        env: [{name: IMAGE, value: *image}]
      volumes:
      - name: keys
        secret: {secretName: keys, defaultMode: 0400}
--- # The next one.
kind: Service
metadata: {name: web}
";

    #[test]
    fn every_other_byte_stays() {
        let new = new_lines(DEPLOYMENT);
        assert_eq!(
            new[..3],
            [
                "      initContainers:",
                "      - args: [\"sidecar\",\"run\",\"-c\",\"/etc/steelyard/sidecar.yaml\"]",
                "        image: \"steelyard:1\""
            ]
        );
        assert_eq!(new.last().unwrap(), "          secretName: \"web-tls\"");
        let Injected { text, pods, notes } = injected(DEPLOYMENT, &args()).unwrap();
        assert_eq!((pods, &notes[..]), (1, &[][..]));
        let pod = &objects(&text)[0]["spec"]["template"]["spec"];
        let names = |list: &Json| -> Vec<String> {
            list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&pod["initContainers"]), [SIDECAR, INIT]);
        assert_eq!(names(&pod["volumes"]), [CONFIG_VOLUME, TLS_VOLUME, "keys"]);
        assert_eq!(pod["initContainers"][1]["securityContext"]["capabilities"]["add"], json!(["NET_ADMIN"]));
        assert_eq!(pod["volumes"][2]["secret"]["defaultMode"], 0o400);
        // Again: nothing changes, except what is different now.
        assert_eq!(injected(&text, &args()).unwrap().text, text);
        let newer =
            injected(&text, &InjectedArgs { image: "steelyard:2".into(), secret: None, ..args() }).unwrap().text;
        let pod = &objects(&newer)[0]["spec"]["template"]["spec"];
        assert_eq!(
            (&pod["initContainers"][0]["image"], pod["initContainers"].as_array().unwrap().len()),
            (&json!("steelyard:2"), 2)
        );
        assert_eq!(names(&pod["volumes"]), [CONFIG_VOLUME, "keys"]);
    }

    #[test]
    fn forms_of_a_pod() {
        let check = |spec: &str, kept: usize| {
            let text = format!("kind: Pod\nmetadata: {{labels: {{steelyard.io/sidecar: enabled}}}}\n{spec}");
            let once = injected(&text, &args()).unwrap_or_else(|why| panic!("{spec}: {why}")).text;
            let pod = &objects(&once)[0]["spec"];
            assert_eq!(pod["initContainers"].as_array().unwrap().len(), 2 + kept, "{once}");
            assert_eq!(pod["volumes"].as_array().unwrap().len(), 2, "{once}");
            let twice = injected(&once, &InjectedArgs { image: "2".into(), ..args() })
                .unwrap_or_else(|why| panic!("{once}: {why}"))
                .text;
            assert_eq!(injected(&twice, &args()).unwrap().text, once);
        };
        check("spec: {}", 0);
        check("spec: {containers: []}", 0);
        check("spec:\n  containers: []", 0);
        check("spec:\n    containers: []\n    initContainers: [{name: a}]\n    volumes: []", 1);
        check(
            "spec:\n  initContainers:\n  - name: a\n    args:\n      - |\n        text\n\n  - {name: b}\n  # end\n  containers: []\n",
            2,
        );
        check("spec:\n  initContainers:\n    - {name: a}\n  containers:\n", 1);
        check("spec:\n  initContainers:\n  volumes: ~ # none\n", 0);
        check("spec:\n  initContainers: # none\n\n  containers: []\n", 0);
        check("spec: {initContainers: , volumes: null}", 0);
        check("spec: &pod !!map\n  containers: [{name: a}]\n", 0);
        check("spec: {\n  \"containers\": [ {} ],\r\n  \"initContainers\": [\n    { \"name\": \"a\" }\n  ]\n }", 1);
        check("spec:\r\n  initContainers:\r\n  - name: a\r\n  containers: []\r\n", 1);
        check("spec:\n  note: ä\n  initContainers: [{name: ö}]\n", 1);
    }

    #[test]
    fn pods_within_other_objects() {
        let pod = "metadata: {labels: {steelyard.io/sidecar: enabled}}\nspec: {containers: []}";
        let inner = "{metadata: {labels: {steelyard.io/sidecar: enabled}}, spec: {containers: []}}";
        let check = |text: &str, expect: usize, note: &str| {
            let Injected { text: out, pods, notes } = injected(text, &args()).unwrap();
            assert_eq!((pods, notes.join(" ").contains(note)), (expect, true), "{text} {notes:?}");
            assert_eq!(pods == 0, out == text);
        };
        check(&format!("kind: Pod\n{pod}"), 1, "");
        check(&format!("kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {inner}}}}}}}"), 1, "");
        check(&format!("kind: List\nitems: [{{kind: Job, spec: {{template: {inner}}}}}, {{kind: ConfigMap}}]"), 1, "");
        check(&format!("kind: PodList\nitems:\n- {inner}\n- {inner}"), 2, "");
        check(&format!("kind: DeploymentList\nitems: [{{spec: {{template: {inner}}}}}]"), 1, "");
        check(
            &format!("kind: Rollout\nmetadata: {{name: web}}\nspec: {{template: {inner}}}"),
            0,
            "Rollout web (line 1): its pods get no",
        );
        check(
            "kind: Deployment\nmetadata: {name: web, labels: {steelyard.io/sidecar: enabled}}\nspec: {template: {}}",
            0,
            "has no effect here",
        );
        for text in [
            DEPLOYMENT.replace("enabled", "disabled"),
            DEPLOYMENT.replace("steelyard.io/sidecar", "example.com/sidecar"),
            DEPLOYMENT.replace("labels: {yes", "labels: {steelyard.io/sidecar: disabled, yes"),
            "# nothing\n".to_owned(),
            String::new(),
        ] {
            check(&text, 0, "");
        }
    }

    #[test]
    fn what_is_refused() {
        let pod = |spec: &str| {
            format!("kind: Pod\nmetadata: {{name: web, labels: {{steelyard.io/sidecar: enabled}}}}\n{spec}")
        };
        let check = |text: &str, expect: &str| {
            let why = injected(text, &args()).unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        check(&pod("spec: {hostNetwork: yes}"), "Pod web (line 1): `hostNetwork` shares the network");
        check(&pod("spec: {securityContext: {runAsUser: 1337}, containers: [{name: a}]}"), "\"a\" runs as user 1337");
        check(&pod("spec: {containers: [{name: a, securityContext: {runAsUser: 1337}}]}"), "\"a\" runs as user 1337");
        check(&pod("spec: &s {}\nother: *s"), "`spec` comes from an anchor");
        check(&pod("base: &s {initContainers: []}\nspec: {<<: *s}"), "`initContainers` comes from an anchor");
        check(&pod("spec: {initContainers: 3}"), "`initContainers` is not a list");
        check(&pod("spec: {}\nspec: {}"), "`spec` is there twice");
        check(&pod(""), "has no `spec`");
        check(&pod("spec: {initContainers: [{name: a}, {name: steelyard-sidecar}]}"), "must be in front");
        check(&pod("spec: {}").replace("enabled", "true"), "neither `enabled` nor `disabled`");
        check(&pod("spec:\n  ? containers\n  : []"), "cannot be edited");
        check("a: [", "this is not YAML");
    }
}
