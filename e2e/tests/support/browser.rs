//! A real browser without a screen: Debian's chromium, driven over its debugging pipe (the Chrome DevTools Protocol).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};
use testkit::PATIENCE;

use crate::support::Scratch;

/// The browser with one page. It ends when this is dropped.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    calls: u64,
    /// What the page logged, and what the browser logged about it: violations of the content security policy among others.
    pub logged: Vec<String>,
    /// The URLs that were asked for.
    pub asked: Vec<String>,
    _profile: Scratch,
}

impl Browser {
    /// `None` if this host has none.
    pub fn start() -> Option<Self> {
        let profile = Scratch::new();
        // The pipe is at the descriptors 3 and 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", "chromium", "--headless"]);
        command.args([
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
        ]);
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        if !Command::new("chromium")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
        {
            return None;
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("sh");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                if serde_json::from_slice(&message).map(|message| sender.send(message)).is_err() {
                    return;
                }
            }
        });
        let (session, logged, asked) = (String::new(), Vec::new(), Vec::new());
        let mut browser = Self { child, input, messages, session, calls: 0, logged, asked, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", target)["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let message = self.answer(method, params);
        assert_eq!(message["error"], Value::Null, "{method}");
        message["result"].clone()
    }

    /// Calls a method and returns the answer, which may be an error.
    fn answer(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_empty() {
            call["sessionId"] = json!(self.session);
        }
        self.input.write_all(format!("{call}\0").as_bytes()).unwrap();
        loop {
            let message = self.messages.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == json!(self.calls) {
                return message;
            }
            self.hear(&message);
        }
    }

    /// Remembers what an event says.
    fn hear(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Log.entryAdded" => self.logged.push(params["entry"].to_string()),
            "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" => self.logged.push(params.to_string()),
            "Network.requestWillBeSent" => {
                self.asked.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// The value of an expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        self.value(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The same; an error if the page went away meanwhile.
    fn value(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let message = self.answer("Runtime.evaluate", params);
        if message["error"] != Value::Null {
            return Err(message["error"].clone());
        }
        let result = &message["result"];
        assert_eq!(result["exceptionDetails"], Value::Null, "{expression}");
        Ok(result["result"]["value"].clone())
    }

    /// Waits until an expression in the page is true.
    pub fn until(&mut self, expression: &str) {
        // Between two pages there is nothing to look at.
        let asked = format!("(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()");
        let is_so = testkit::until(PATIENCE, || self.value(&asked).ok()?.as_bool().filter(|is_so| *is_so));
        assert!(is_so.is_some(), "{expression}: {}", self.eval("document.body.innerText"));
    }

    /// Opens a page and waits until it is there.
    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert_eq!(opened["errorText"], Value::Null, "{url}");
        self.until(&format!("document.readyState === 'complete' && location.href === {}", json!(url)));
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let key = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": if kind == "keyDown" { text } else { "" }});
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// Sets the width of the window in CSS pixels, and the colour scheme.
    pub fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", scheme);
    }

    /// Writes a picture of the whole page into the folder that STEELYARD_SCREENSHOTS names, for people.
    pub fn screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("STEELYARD_SCREENSHOTS") else { return };
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let shot = self.call("Page.captureScreenshot", params);
        let path = std::path::Path::new(&folder).join(format!("{name}.png"));
        let mut decode = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(path).unwrap())
            .spawn()
            .unwrap();
        decode.stdin.take().unwrap().write_all(shot["data"].as_str().unwrap().as_bytes()).unwrap();
        assert!(decode.wait().unwrap().success());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // If it has ended already, nothing is left to do.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
