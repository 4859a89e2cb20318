//! Chromium without a window, steered over its DevTools protocol: as a phone or a desk, by day or night, by keyboard, and with
//! pictures of what it shows.
//!
//! The protocol goes over two pipes (`--remote-debugging-pipe`): JSON, with a zero byte behind each message.

use crate::WAIT_LIMIT;
use crate::{base64_decoded, eventually};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

/// A browser with one page; killed on drop.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: String,
    /// What the page has logged, its errors included.
    pub log: Vec<String>,
}

impl Browser {
    /// Starts it with its files in a folder.
    #[track_caller]
    pub fn start(program: &Path, folder: &Path) -> Self {
        let mut command = Command::new("sh");
        // The protocol's pipes are the descriptors 3 and 4.
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1"]).arg(program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", folder.join("chromium").display()));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell can be started");
        let to = child.stdin.take().expect("it has a pipe");
        let mut reader = BufReader::new(child.stdout.take().expect("it has a pipe"));
        let (told, from) = sync_channel(10_000);
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while reader.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { return };
                if told.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self { child, to, from, next: 0, session: String::new(), log: Vec::new() };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.ask("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().expect("a session has an id").to_owned();
        for domain in ["Page", "Runtime", "Log", "Accessibility"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol, and returns its result.
    #[track_caller]
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap_or_else(|error| panic!("{method}: the browser has ended: {error}"));
        let start = Instant::now();
        loop {
            let left = (WAIT_LIMIT * 2).saturating_sub(start.elapsed());
            let answer = self.from.recv_timeout(left).unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if answer["id"] == self.next {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            if let Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded") =
                answer["method"].as_str()
            {
                self.log.push(answer["params"].to_string());
            }
        }
    }

    /// The value of an expression in the page; a promise is waited for.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let how = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", how);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Whether an expression is true at some time.
    #[track_caller]
    pub fn becomes_true(&mut self, expression: &str) -> bool {
        eventually(|| self.evaluate(expression) == true)
    }

    /// The screen: its width and height in CSS pixels, and whether it is a phone's.
    #[track_caller]
    pub fn screen(&mut self, width: u32, height: u32, is_phone: bool) {
        let how = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.ask("Emulation.setDeviceMetricsOverride", how);
    }

    /// What the page is told that its reader prefers.
    #[track_caller]
    pub fn prefer_dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let how = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.ask("Emulation.setEmulatedMedia", how);
    }

    /// Opens a page, and waits until an expression is true there.
    #[track_caller]
    pub fn open(&mut self, url: &str, ready: &str) {
        self.ask("Page.navigate", json!({ "url": url }));
        let is_ready = self.becomes_true(&format!("document.readyState === 'complete' && Boolean({ready})"));
        assert!(is_ready, "{url}: never {ready}: {:?}", self.log);
    }

    /// Presses a key by its name in the DOM: `Tab`, `Enter`, or a character.
    #[track_caller]
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            " " => 32,
            "ArrowRight" => 39,
            _ => key.chars().next().map_or(0, |c| c.to_ascii_uppercase() as u32),
        };
        let text = match key {
            "Enter" => "\r",
            one if one.chars().count() == 1 => one,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.ask("Input.dispatchKeyEvent", event);
        }
    }

    /// What a screen reader is told of the page: role and name of each node that it does not leave out.
    #[track_caller]
    pub fn spoken(&mut self) -> Vec<(String, String)> {
        let tree = self.ask("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        nodes.iter().filter(|n| n["ignored"] != true).map(|n| (text(&n["role"]), text(&n["name"]))).collect()
    }

    /// A picture of the upper part of the page, as PNG.
    #[track_caller]
    pub fn picture(&mut self, width: u32, height: u32) -> Vec<u8> {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let how = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true, "optimizeForSpeed": false });
        let answer = self.ask("Page.captureScreenshot", how);
        base64_decoded(answer["data"].as_str().expect("a picture has data"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
