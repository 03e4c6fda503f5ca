//! A real browser, driven over WebDriver (W3C): Chromium by its own driver, both from packages.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

/// How long the browser may take for one step.
const PATIENCE: Duration = Duration::from_secs(120);
/// So often one is begun.
const TRIES: usize = 3;

/// A browser with one window.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// The browser's own process.
    process: Option<Pid>,
    /// Its profile, which it would leave behind.
    _profile: tempfile::TempDir,
}

/// One request and its answer: status, headers, body.
pub fn http(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += &format!("Host: 127.0.0.1:{port}\r\n");
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse::<usize>().ok();
        }
        head += &line;
    }
    let mut bytes = Vec::new();
    match length {
        Some(length) => {
            bytes.resize(length, 0);
            reader.read_exact(&mut bytes).unwrap();
        }
        None => drop(reader.read_to_end(&mut bytes)),
    }
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, head, String::from_utf8_lossy(&bytes).into_owned())
}

/// A file that came as text.
fn unpack(text: &Value, path: &Path) {
    let mut decoder = Command::new("base64")
        .arg("-d")
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(path).unwrap())
        .spawn()
        .unwrap();
    decoder.stdin.take().unwrap().write_all(text.as_str().unwrap().as_bytes()).unwrap();
    assert!(decoder.wait().unwrap().success());
}

/// Starts a driver; or what it said instead of the port where it listens. It takes a free port of `::1` and gives up where
/// that one is taken on 127.0.0.1.
fn driver() -> Result<(Child, u16), Value> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("chromedriver: {error}; the page is tried in a real browser: scripts/setup.sh, or apt-get install chromium chromium-driver")
        });
    let mut said = Vec::new();
    for line in BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if let Some((_, rest)) = line.split_once("started successfully on port ") {
            return Ok((driver, rest.trim_end_matches('.').parse().unwrap()));
        }
        said.push(line);
    }
    let _ = driver.wait();
    Err(json!(said))
}

impl Browser {
    /// Starts one. Where there is none the test fails, and says what to install.
    pub fn start() -> Browser {
        let mut refused = Vec::new();
        while refused.len() < TRIES {
            match Browser::begin() {
                Ok(browser) => return browser,
                Err(made) => refused.push(made.to_string()),
            }
        }
        panic!("no browser: {refused:?}");
    }

    /// Begins one; or what the driver said when it gave it up. It does so after a minute, which the first start on a busy machine may take.
    fn begin() -> Result<Browser, Value> {
        let (driver, port) = driver()?;
        let profile = tempfile::Builder::new().prefix("ropewalk-browser-").tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--js-flags=--expose-gc",
            "--enable-precise-memory-info",
            &folder,
        ];
        let mut browser = Browser { driver, port, session: String::new(), process: None, _profile: profile };
        let options = json!({ "args": arguments });
        // A script may take as long as its answer is waited for, not half a minute; the driver says so first.
        let timeouts = json!({ "script": (PATIENCE - Duration::from_secs(10)).as_millis() as u64 });
        let logs = json!({ "browser": "ALL" });
        let wanted =
            json!({ "goog:chromeOptions": options, "goog:loggingPrefs": logs, "timeouts": timeouts });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let made = browser.call("POST", "/session", &wanted);
        let Some(session) = made["sessionId"].as_str() else { return Err(made) };
        browser.session = session.to_owned();
        let process = made["capabilities"]["goog:processID"].as_i64();
        browser.process = process.and_then(|id| Pid::from_raw(id.try_into().ok()?));
        assert!(browser.process.is_some(), "the driver tells the browser's process: {made}");
        browser.size(1280, 900);
        Ok(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (_, _, text) = http(self.port, method, path, &[], &body.to_string());
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"));
        answer["value"].clone()
    }

    /// A command of its session; it must succeed.
    fn say(&self, path: &str, body: Value) -> Value {
        let value = self.call("POST", &format!("/session/{}{path}", self.session), &body);
        assert!(value["error"].is_null(), "{path} {body}: {value}");
        value
    }

    /// A command of the browser's own protocol.
    fn cdp(&self, command: &str, params: Value) -> Value {
        self.say("/goog/cdp/execute", json!({ "cmd": command, "params": params }))
    }

    /// How long the page's thread has been on a CPU, milliseconds.
    pub fn cpu_ms(&self) -> f64 {
        self.cdp("Performance.enable", json!({}));
        let told = self.cdp("Performance.getMetrics", json!({}));
        let metric = told["metrics"].as_array().unwrap().iter().find(|metric| metric["name"] == "ThreadTime");
        metric.unwrap_or_else(|| panic!("no ThreadTime: {told}"))["value"].as_f64().unwrap() * 1e3
    }

    /// Goes to an address.
    pub fn open(&self, url: &str) {
        self.say("/url", json!({ "url": url }));
    }

    /// Size of what is shown.
    pub fn size(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.cdp("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// `light` or `dark`, on a screen or as it is printed.
    pub fn scheme(&self, scheme: &str, media: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.cdp("Emulation.setEmulatedMedia", json!({ "media": media, "features": features }));
    }

    /// What a function body of JavaScript returns.
    pub fn js(&self, script: &str) -> Value {
        self.say("/execute/sync", json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true.
    pub fn until(&self, expression: &str) {
        // What is not there yet is no error.
        let script = format!("try {{ return !!({expression}) }} catch {{ return false }}");
        let end = Instant::now() + PATIENCE;
        while self.js(&script) != true {
            assert!(Instant::now() < end, "waited in vain: {expression}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// All that can be read.
    pub fn text(&self) -> String {
        self.js("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// What the mouse does.
    fn mouse(&self, actions: &[Value]) {
        self.say("/actions", json!({ "actions": [{ "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": actions }] }));
    }

    /// Presses at a place of an element that an expression finds, and goes to another one before letting go. Places are shares
    /// of its width and height. What moved away before the mouse was over it is gone after.
    pub fn drag(&self, element: &str, from: (f64, f64), to: (f64, f64)) {
        let find = format!(
            "try {{ const box = ({element}); box.scrollIntoView({{block: 'center'}}); const r = box.getBoundingClientRect(); return [r.left, r.top, r.width, r.height] }} catch {{ return null }}"
        );
        let end = Instant::now() + PATIENCE;
        loop {
            let place = self.js(&find);
            // It is being drawn anew.
            if place.is_null() {
                assert!(Instant::now() < end, "it is not there: {element}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let at = |share: f64, n: usize| {
                (place[n].as_f64().unwrap() + share * place[n + 2].as_f64().unwrap()).round()
            };
            let go = |(x, y): (f64, f64)| json!({ "type": "pointerMove", "duration": 50, "x": at(x, 0), "y": at(y, 1) });
            self.mouse(&[go(from)]);
            let over = format!(
                "return !!({element})?.contains(document.elementFromPoint({}, {}))",
                at(from.0, 0),
                at(from.1, 1)
            );
            if self.js(&over) == true {
                let [down, up] =
                    ["pointerDown", "pointerUp"].map(|kind| json!({ "type": kind, "button": 0 }));
                return self.mouse(&[down, go(to), up]);
            }
            assert!(Instant::now() < end, "the mouse does not get over it: {element}");
        }
    }

    /// Moves the mouse over a place of what is shown, in pixels.
    pub fn hover(&self, x: f64, y: f64) {
        self.mouse(&[json!({ "type": "pointerMove", "duration": 50, "x": x.round(), "y": y.round() })]);
    }

    /// Clicks in the middle of an element.
    pub fn click(&self, element: &str) {
        self.drag(element, (0.5, 0.5), (0.5, 0.5));
    }

    /// Presses a key.
    pub fn key(&self, key: &str) {
        let actions = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        self.say("/actions", json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] }));
    }

    /// A picture of what is shown.
    pub fn picture(&self, path: &Path) {
        let (_, _, text) = http(self.port, "GET", &format!("/session/{}/screenshot", self.session), &[], "");
        let answer: Value = serde_json::from_str(&text).unwrap();
        unpack(&answer["value"], path);
    }

    /// What its printer would get, on A4, as a PDF file.
    pub fn print(&self, path: &Path) {
        unpack(&self.say("/print", json!({ "page": { "width": 21.0, "height": 29.7 } })), path);
    }

    /// What its console holds of errors.
    pub fn errors(&self) -> Vec<String> {
        let log = self.say("/se/log", json!({ "type": "browser" }));
        let severe = log.as_array().into_iter().flatten().filter(|line| line["level"] == "SEVERE");
        severe.map(|line| line["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // Ends the browser; the driver alone would leave it, and so would a request with a body.
            let _ = http(self.port, "DELETE", &format!("/session/{}", self.session), &[], "");
        }
        if let Some(process) = self.process {
            // It writes into its profile to the last.
            let end = Instant::now() + Duration::from_secs(10);
            while rustix::process::test_kill_process(process).is_ok() {
                if Instant::now() > end {
                    let _ = rustix::process::kill_process(process, Signal::KILL);
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
