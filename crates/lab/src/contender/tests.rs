//! Contender files: the shipped ones, errors in a file, and what is missing on a host.

use super::*;

fn vars(workers: u32, pod: &'static str) -> Vars {
    let endpoint =
        |index: u16| EndpointVars { name: format!("ep{index}"), address: format!("10.10{index}.7.1"), port: 9000 };
    let service = ServiceVars {
        name: "s0".into(),
        protocol: "http",
        address: "20.20.7.1".into(),
        port: 9000,
        endpoints: vec![endpoint(0), endpoint(1)],
    };
    Vars {
        program: "/bin/program".into(),
        file: "/run/file".into(),
        dir: "/run/dir".into(),
        workers,
        interfaces: vec!["client0".into(), "ep0".into()],
        pod,
        shared: "/run/shared".into(),
        load_cgroup: "/sys/fs/cgroup/load".into(),
        certificate: "/run/certificate.pem".into(),
        services: vec![service],
    }
}

#[test]
fn every_shipped_contender_can_be_read_and_filled() {
    let recipes = all(None).unwrap();
    assert!(recipes.len() >= 17);
    for recipe in &recipes {
        let pods: Vec<&'static str> = recipe.pods.iter().map(|pod| pod.name()).collect();
        if !pods.is_empty() {
            filled_for_pods(recipe, &pods);
            continue;
        }
        for variant in [Variant::Tuned, Variant::Default] {
            let rendered = match render(recipe, variant, &vars(2, "")) {
                Ok(rendered) => rendered,
                Err(_) if variant == Variant::Default && recipe.default.is_none() => continue,
                Err(why) => panic!("{}: {why}", recipe.name),
            };
            if recipe.is_bare() {
                assert_eq!(rendered.configuration, "");
                continue;
            }
            let text = rendered.configuration;
            assert!(!text.contains("{{") && !text.contains("{%"), "{}: {text}", recipe.name);
            for place in ["20.20.7.1", "10.100.7.1", "10.101.7.1", "9000"] {
                assert!(text.contains(place), "{} has no {place}: {text}", recipe.name);
            }
            assert_eq!(
                text.contains("/run/certificate.pem"),
                recipe.speaks.contains(&Protocol::Https),
                "{}",
                recipe.name
            );
            let words = rendered.start.iter().chain(rendered.setup.iter().flatten());
            assert!(words.clone().any(|word| word.contains("/run/file")), "{}", recipe.name);
        }
    }
}

/// What is captured may be in rules instead of the configuration, and is not the same in both pods.
#[track_caller]
fn filled_for_pods(recipe: &Recipe, pods: &[&'static str]) {
    let of_pod = |pod: &&'static str| {
        let rendered =
            render(recipe, Variant::Tuned, &vars(2, pod)).unwrap_or_else(|why| panic!("{}: {why}", recipe.name));
        assert!(rendered.start.iter().any(|word| word == "/run/file"), "{}", recipe.name);
        rendered.configuration + &rendered.setup.concat().join("\n")
    };
    let text: String = pods.iter().map(of_pod).collect();
    assert!(!text.contains("{{") && !text.contains("{%"), "{}: {text}", recipe.name);
    for place in ["20.20.7.1", "10.100.7.1", "10.101.7.1", "9000"] {
        assert!(text.contains(place), "{} has no {place}: {text}", recipe.name);
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_place() {
    let check = |text: &str, expect: &[&str]| {
        let problems = Recipe::read("x", "x.toml", text).unwrap_err();
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{text}");
    };
    check(
        "titel = 'X'\nlayer = 'htp'\nspeaks = ['http', 'h3']\n",
        &[
            "x.toml:1:1: `title` is missing",
            "x.toml:1:1: `program` is missing: names to look for, or `itself = true` for this program",
            "x.toml:1:1: `start` is missing: set its command, or `setup` if it needs no process",
            "x.toml:1:1: unknown name `titel`; did you mean `title`?",
            "x.toml:2:9: `layer` is \"htp\"; it must be direct, routed, kernel, tcp, http, h2; did you mean `http`?",
            "x.toml:3:19: \"h3\" is not a protocol; use some of http, h2, h2-http, https, tcp",
        ],
    );
    let whole = "title = 'X'\nlayer = 'tcp'\nspeaks = ['tcp']\nprogram = ['x']\nstart = ['{{ program }}']\n";
    check(
        &format!("{whole}[configuration]\ntuned = '''\nlisten {{{{ prot }}}}\n'''"),
        &["x.toml:6:1: configuration: line 1 of the template: `prot` is undefined"],
    );
    let pods = |pods: &str| whole.replace("program =", &format!("pods = {pods}\nprogram ="));
    check(
        &pods("['client', 'sever', 'client']"),
        &[
            "x.toml:4:8: `pods` are network namespaces: add `needs_root = true`",
            "x.toml:4:19: \"sever\" is not a pod; use client or server",
            "x.toml:4:28: \"client\" is there twice",
        ],
    );
    let build = "build = { folder = '../x', version = '1', program = 'bin/x' }\nfirst_requests = 5000\n[configuration]\ntuned = ''";
    check(
        &format!("{whole}{build}"),
        &[
            "x.toml:6:20: `folder` is a part of a directory's name, without / and not with a dot in front",
            "x.toml:7:18: `first_requests` must be a whole number from 0 to 1000, not the number 5000",
        ],
    );
    check(
        "title = 'X'\nlayer = 'direct'\nspeaks = ['tcp']\nstart = ['x']\n",
        &["x.toml:4:9: `start`: this layer starts nothing between load and origin"],
    );
}

#[test]
fn a_directory_adds_and_replaces() {
    let directory = std::env::temp_dir().join(format!("steelyard-contenders-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let shipped = all(None).unwrap().len();
    let text = "title = 'X'\nlayer = 'direct'\nspeaks = ['tcp']\n";
    std::fs::write(directory.join("rival.toml"), text).unwrap();
    std::fs::write(directory.join("envoy-tcp.toml"), text).unwrap();
    let recipes = all(Some(&directory)).unwrap();
    assert_eq!(recipes.len(), shipped + 1);
    assert_eq!(recipes.iter().find(|recipe| recipe.name == "envoy-tcp").unwrap().title, "X");
    std::fs::write(directory.join("rival.toml"), "nonsense").unwrap();
    assert!(all(Some(&directory)).is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_program_is_read_once_and_told_from_others() {
    let directory = std::env::temp_dir().join(format!("steelyard-lab-digests-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (program, other) = (directory.join("program"), directory.join("other"));
    std::fs::write(&program, "").unwrap();
    std::fs::write(&other, "other").unwrap();
    let mut digests = Digests::default();
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(digests.of(&program), empty);
    std::fs::write(&program, "now it is another").unwrap();
    assert_eq!(digests.of(&program), empty, "it was read again");
    assert_ne!(digests.of(&other), empty);
    assert_eq!(digests.of(Path::new("")), "");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_is_missing_is_a_gap_that_says_how_to_get_it() {
    let recipe = Recipe { program: vec!["no-such-program".into()], go: None, ..all(None).unwrap().remove(0) };
    let check = |recipe: &Recipe, is_root, expect: &str| {
        let probed = find(recipe, Path::new("/bin/true"), Path::new("/nowhere"), is_root);
        let Probed::Missing(gap) = probed else { panic!("{probed:?}") };
        assert!(gap.why.contains(expect), "{}", gap.why);
    };
    let process = Recipe { layer: Layer::Tcp, start: vec!["x".into()], ..recipe.clone() };
    check(&process, true, "no-such-program is not installed");
    check(&Recipe { packages: vec!["some-package".into()], ..process.clone() }, true, "apt-get install some-package");
    check(&Recipe { needs_root: true, ..process.clone() }, false, "needs root");
    let itself = Recipe { itself: true, ..process.clone() };
    check(
        &Recipe {
            probe: vec![vec!["/bin/sh".into(), "-c".into(), "echo no such thing; exit 1".into()]],
            ..itself.clone()
        },
        true,
        "printed: no such thing",
    );
    let build = Build {
        folder: "own".into(),
        version: "1.2".into(),
        program: "own".into(),
        tools: vec!["go".into()],
        packages: Vec::new(),
        beside: None,
    };
    check(
        &Recipe { build: Some(build), ..process.clone() },
        true,
        "lab doctor --install` builds own 1.2, which takes minutes and go",
    );
    let need = Need { file: "/no/module.so".into(), package: "module".into() };
    check(&Recipe { needs: vec![need], ..itself.clone() }, true, "apt-get install module");
    assert!(matches!(find(&itself, Path::new("/bin/true"), Path::new("/"), true), Probed::Here(_)));
}

#[test]
fn another_build_of_a_program_takes_part_under_its_version() {
    let directory = std::env::temp_dir().join(format!("steelyard-lab-copies-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let program = |name: &str, says: &str| {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let recipes = all(None).unwrap();
    let haproxy = program("haproxy", "HAProxy version 3.4.0-abc 2026/06/01 - https://haproxy.org/");
    let copied = copies(&recipes, "haproxy", &haproxy).unwrap();
    let http = copied.iter().find(|(original, _)| original == "haproxy-http").unwrap();
    assert_eq!((http.1.name.as_str(), http.1.title.as_str()), ("haproxy-http-3-4-0", "HAProxy http 3.4.0"));
    assert_eq!(http.1.program, [haproxy.canonicalize().unwrap().display().to_string()]);
    assert!(copied.len() >= 3 && http.1.name.parse::<crate::scenario::InstanceId>().is_ok());
    let check = |name: &str, path: &Path, expect: &str| {
        let error = copies(&recipes, name, path).unwrap_err();
        assert!(error.contains(expect), "{error}");
    };
    check("haprxy", &haproxy, "no contender runs \"haprxy\"; their programs are ");
    check("haproxy", Path::new("/no/haproxy"), "/no/haproxy: No such file");
    check("haproxy", &program("mute", "no number"), "prints no version: \"no number\"");
    std::fs::remove_dir_all(&directory).unwrap();
}
