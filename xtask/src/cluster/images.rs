//! The images that the nodes run. They come from no registry: the verb makes each on this host and imports it into containerd.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::node::PAUSE;
use crate::command::{capture, command, find_program, run as run_command};
use crate::dist::{Release, image, image_for_tests, pack};
use crate::kube;

/// The configuration of nginx, which is the endpoint in the tests. It answers with the name of its pod, or with the address of the client.
const WEB: &str = "
daemon off;
user root;
pid /tmp/nginx.pid;
error_log stderr;
worker_processes 1;
events { worker_connections 1024; }
http {
    access_log off;
    default_type text/plain;
    keepalive_requests 1000000;
    client_body_temp_path /tmp/body;
    proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    server {
        listen 8080;
        location / { return 200 $hostname; }
        location /client { return 200 $remote_addr; }
        # nginx keeps a body in memory before it forwards it. A large one exceeds the memory limit of a pod.
        location /upload { client_max_body_size 0; client_body_buffer_size 1024m; proxy_pass http://127.0.0.1:9; }
    }
}
";

/// The name of the image of the release, and of that of the version before.
pub const STEELYARD: &str = concat!("localhost/steelyard:", env!("CARGO_PKG_VERSION"));
pub const PREVIOUS: &str = "localhost/steelyard:previous";

/// Makes all images.
pub fn make() -> Result<Vec<PathBuf>, String> {
    let release = Release::for_tests("cluster/images")?;
    Ok(vec![pause(&release)?, web(&release)?, names(&release)?, image_for_tests(&release)?])
}

/// Makes the image with the program that holds the namespaces of a pod. The source is that of Kubernetes.
pub fn pause(release: &Release) -> Result<PathBuf, String> {
    let (name, _) = PAUSE.trim_start_matches("localhost/").split_once(':').unwrap_or_default();
    let files = release.stage(name)?.join(image::FILES);
    fs::create_dir_all(&files).map_err(|error| format!("cannot make {}: {error}", files.display()))?;
    let source = kube::module("k8s.io/kubernetes")?.join("build/pause/linux/pause.c");
    let (source, program) = (source.display().to_string(), files.join("pause").display().to_string());
    run_command(&mut command("cc", &["-Os", "-static", "-DVERSION=1", "-o", &program, &source]))?;
    image::of_files(release, name, PAUSE, json!({"config": {"User": "65535:65535", "Entrypoint": ["/pause"]}}))
}

/// Makes an image of this host's nginx and its libraries. Like its official image, it ends by SIGQUIT, which lets requests in progress finish.
fn web(release: &Release) -> Result<PathBuf, String> {
    let files = release.stage("web")?.join(image::FILES);
    let nginx = put(&files, "nginx")?;
    pack::write(&files.join("etc/nginx/nginx.conf"), WEB)?;
    // nginx needs the folder for temporary files.
    pack::write(&files.join("tmp/empty"), "")?;
    let config: Value = json!({"config": {
        "Entrypoint": [nginx, "-e", "stderr", "-c", "/etc/nginx/nginx.conf"],
        "StopSignal": "SIGQUIT",
    }});
    image::of_files(release, "web", "localhost/web:1", config)
}

/// Makes an image of a name server and of clients: this host's dnsmasq, dig and curl.
fn names(release: &Release) -> Result<PathBuf, String> {
    let files = release.stage("names")?.join(image::FILES);
    let dnsmasq = put(&files, "dnsmasq")?;
    for client in ["dig", "curl"] {
        put(&files, client)?;
    }
    let entry = [&dnsmasq.to_string_lossy(), "--keep-in-foreground", "--user=root", "--no-resolv", "--no-hosts"];
    let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    image::of_files(release, "names", "localhost/names:1", json!({"config": {"Entrypoint": entry, "Env": [path]}}))
}

/// Puts a program of this host with its libraries into the files of an image that runs as root. Returns the path of the program.
fn put(files: &Path, name: &str) -> Result<PathBuf, String> {
    let program = find_program(name).ok_or_else(|| format!("there is no {name} on this host"))?;
    let inside = |path: &Path| files.join(path.strip_prefix("/").unwrap_or(path));
    pack::copy(&program, &inside(&program))?;
    for library in libraries(&program)? {
        pack::copy(&library, &inside(&library))?;
    }
    pack::write(&files.join("etc/passwd"), "root:x:0:0::/:/sbin/nologin\n")?;
    pack::write(&files.join("etc/group"), "root:x:0:\n")?;
    Ok(program)
}

/// The libraries of a program and its loader, as ldd reports them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let said = capture(&mut command("ldd", &[&program.to_string_lossy()]))?;
    Ok(said.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
