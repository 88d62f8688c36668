//! What goes wrong with a run: a specific message, and nothing left behind.

use super::*;

/// Every cell that a run must have, once.
fn places(run: &Value) -> Vec<String> {
    let place = |cell: &Value| {
        let words = ["case", "instance", "round", "block", "twin"].map(|name| cell[name].to_string());
        words.join(" ")
    };
    cells(run).iter().map(place).collect()
}

#[test]
fn an_interrupted_run_is_resumed() {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let (file, out) = (scratch.write("short.toml", SCENARIO), scratch.path().join("out"));
    let mut program = Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "2"])).unwrap();
    until(PATIENCE, || program.log().contains("\n[3/").then_some(())).expect("three cells");
    program.signal(Signal::INT).unwrap();
    finish(program, 1);
    let before = places(&record(&out));

    // Another run must not be taken for its end.
    let other = lab_run(&file, &out, &["--rounds", "2", "--resume", "--measure", "250ms"]).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(other.status.code() == Some(64) && said.contains("its cases, contenders or times are others"), "{said}");

    let program = Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "2", "--resume"])).unwrap();
    let pid = program.pid();
    let said = finish_run(program, &out);
    let run_file = record(&out);
    assert!(run_file["partial"].is_null(), "{said}");
    let after = places(&run_file);
    assert!(after.starts_with(&before), "what was measured stays");
    let unique: BTreeSet<&String> = after.iter().collect();
    assert_eq!((after.len(), unique.len()), (14, 14), "each once: {after:?}");
    assert!(run_file["notes"].to_string().contains("and resumed at"), "{}", run_file["notes"]);
    assert_nothing_is_left(pid, &out);

    let again = lab_run(&file, &out, &["--rounds", "2", "--resume"]).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(64) && said.contains("there is nothing to resume"), "{said}");
}

#[test]
fn a_rival_that_answers_with_errors_is_a_gap() {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let rivals = scratch.path().join("rivals");
    fs::create_dir(&rivals).unwrap();
    let broken = CONFIGURATION.replace("service.endpoints[0].port", "1");
    let rival = format!(
        "title = 'Broken'\nlayer = 'http'\nspeaks = ['http']\nbinds = true\nitself = true\nversion = ['--version']\nstartup = '2s'\n\
         start = ['{{{{ program }}}}', 'serve', '-c', '{{{{ file }}}}', '--workers', '1']\nsuffix = 'yaml'\n[configuration]\n\
         tuned = '''\n{broken}'''\n"
    );
    fs::write(rivals.join("broken.toml"), rival).unwrap();
    let file = scratch.write("short.toml", &SCENARIO.replace("\"steelyard-tcp*2\"]", "\"broken\"]"));
    let out = scratch.path().join("out");
    let mut command = lab_run(&file, &out, &["--rounds", "1", "--cases", "full", "--contenders-dir"]);
    let program = Program::spawn("lab", command.arg(&rivals)).unwrap();
    let pid = program.pid();
    finish_run(program, &out);
    let run_file = record(&out);
    let gap = run_file["gaps"].as_array().unwrap().iter().find(|gap| gap["what"] == "broken").unwrap();
    let why = gap["why"].as_str().unwrap();
    assert!(why.contains("after 2 s") && why.contains("it answered \"HTTP/1.1 502\""), "{why}");
    assert_nothing_is_left(pid, &out);
}

#[test]
fn a_host_with_one_cpu_is_told_what_that_means() {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let (file, out) = (scratch.write("short.toml", SCENARIO), scratch.path().join("out"));
    let lab = lab_run(&file, &out, &["--rounds", "1", "--cases", "full", "--contenders", "direct,steelyard-http"]);
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(lab.get_program()).args(lab.get_args());
    let program = Program::spawn("lab", &mut command).unwrap();
    let pid = program.pid();
    let said = finish_run(program, &out);
    assert!(said.contains("one CPU: load, balancer and origins share it"), "{said}");
    assert_eq!(record(&out)["environment"]["cpus"], 1);
    assert_nothing_is_left(pid, &out);

    let mut proof = Command::new("taskset");
    proof.args(["-c", "0"]).arg(lab.get_program()).args(["lab", "verify", "--neighbours", "--out"]).arg(&out);
    let proof = proof.output().unwrap();
    let said = String::from_utf8_lossy(&proof.stderr).into_owned();
    assert!(proof.status.code() == Some(77) && said.contains("one CPU"), "{:?} {said}", proof.status);
}

#[test]
fn without_root_a_run_is_on_loopback_and_says_so() {
    if !is_root() {
        // Every other test here is one without root, then.
        return;
    }
    let _measuring = measuring();
    let scratch = Scratch::new();
    let open = |path: &Path| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    open(scratch.path());
    // Where it is built, another user may have no business.
    let lab = lab_run("", Path::new(""), &[]);
    let program = scratch.path().join("steelyard");
    fs::copy(lab.get_program(), &program).unwrap();
    open(&program);
    let (file, out) = (scratch.write("short.toml", SCENARIO), scratch.path().join("out"));
    open(Path::new(&file));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).env("HOME", scratch.path());
    command.args(["lab", "run", &file, "--rounds", "1", "--cases", "full", "--out"]).arg(&out);
    let program = Program::spawn("lab", command.current_dir(scratch.path())).unwrap();
    let pid = program.pid();
    let said = finish_run(program, &out);
    assert!(said.contains("on loopback: no namespaces, no steering, no kernel contenders"), "{said}");
    let run_file = record(&out);
    assert_eq!((&run_file["scenario"]["loopback"], &run_file["environment"]["is_root"]), (&true.into(), &false.into()));
    assert_nothing_is_left(pid, &out);
}

/// A file system that is full soon, unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path, size: &str) -> Self {
        fs::create_dir(path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(path).status();
        assert!(mounted.unwrap().success());
        Self(path)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

#[test]
fn a_full_disk_ends_a_run_and_leaves_what_was_measured() {
    if !is_root() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIP lab: a small disk takes root\n");
        return;
    }
    let _measuring = measuring();
    let scratch = Scratch::new();
    let (file, disk) = (scratch.write("short.toml", SCENARIO), scratch.path().join("disk"));
    let small = SmallDisk::mount(&disk, "192k");
    let out = disk.join("out");
    let program = Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "900"])).unwrap();
    let pid = program.pid();
    let said = finish(program, 1).stderr;
    assert!(said.contains("No space left on device"), "{said}");
    assert_nothing_is_left(pid, &out);
    assert!(!out.join("run.json.new").exists(), "half a file");
    // The last whole file is one.
    assert!(!cells(&record(&out)).is_empty(), "{said}");
    drop(small);
}

#[test]
fn a_file_of_another_version_is_told_from_a_broken_one() {
    let scratch = Scratch::new();
    let check = |text: &str, expect: &str| {
        let file = scratch.write("run.json", text);
        for verb in ["report", "verify"] {
            let finished = run(&["lab", verb, &file]);
            assert!(finished.exit == Exit::Code(1) && finished.stderr.contains(expect), "{verb}: {finished:?}");
        }
    };
    check("{\"schema\": 0}", "a run file of an older version: it has schema 0");
    check("{\"schema\": 9}", "a run file of a newer version: it has schema 9");
    check("{\"schema\": 1, \"cells\"", "not a run: EOF while parsing");
    check("PNG", "not a run: expected value at line 1 column 1");
}
