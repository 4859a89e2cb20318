//! The page in a real browser: does it fit a phone and a desk, is the right chart shown, is night dark? Screenshots go to
//! `SEALANE_SCREENSHOTS`, for people to look at (`cargo xtask browser` sets it).

use std::path::{Path, PathBuf};
use std::process::Command;

use sealane_lab_report::html;

use crate::sample::report;

const WIDTHS: [u32; 3] = [360, 768, 1280];

/// Chromium, as Debian or a user has it.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|f| names.map(|n| f.join(n))).find(|f| f.is_file())
}

/// Runs it without a window; `dark` is what the page is told that the reader prefers.
fn run(browser: &Path, folder: &Path, dark: bool, args: &[String]) -> std::process::Output {
    let scheme = if dark { 0 } else { 1 };
    Command::new(browser)
        // Its own sandbox needs rights that tests do not have; the page is ours.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(args)
        .output()
        .expect("chromium starts")
}

/// A page with the report in a frame of each width, which writes down what it sees.
fn wrapper(page: &str) -> String {
    let page = page.replace('&', "&amp;").replace('\'', "&#39;");
    let frames: String =
        WIDTHS.iter().map(|w| format!("<iframe width={w} height=900 srcdoc='{page}'></iframe>")).collect();
    format!(
        "<!doctype html><meta charset=utf-8><body>{frames}<pre id=seen></pre><script>onload=()=>{{let s='';\
         for(const f of document.querySelectorAll('iframe')){{const w=f.contentWindow,d=f.contentDocument,\
         e=d.documentElement,v=c=>w.getComputedStyle(d.querySelector('svg.'+c)).display;\
         s+=`SEEN ${{f.width}} ${{e.scrollWidth-e.clientWidth}} ${{v('wide')}} ${{v('narrow')}} \
         ${{w.getComputedStyle(d.body).backgroundColor.replaceAll(' ','')}}\\n`}}\
         document.getElementById('seen').textContent=s}}</script>"
    )
}

#[test]
fn it_fits_every_screen_by_day_and_by_night() {
    let Some(browser) = browser() else {
        println!("skipped: no chromium on this machine (cargo xtask browser installs it)");
        return;
    };
    let folder = std::env::temp_dir().join(format!("sealane-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let page = html::page(&report());
    let (file, frames) = (folder.join("report.html"), folder.join("frames.html"));
    std::fs::write(&file, &page).unwrap();
    std::fs::write(&frames, wrapper(&page)).unwrap();
    let shots = std::env::var_os("SEALANE_SCREENSHOTS").map_or_else(|| folder.clone(), PathBuf::from);
    std::fs::create_dir_all(&shots).unwrap();
    for (dark, background) in [(false, "rgb(255,255,255)"), (true, "rgb(14,17,22)")] {
        let url = format!("file://{}", frames.display());
        let output = run(&browser, &folder, dark, &["--dump-dom".into(), url]);
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        let seen: Vec<Vec<&str>> = dom
            .lines()
            .filter_map(|l| l.split_once("SEEN ").filter(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit())))
            .map(|(_, rest)| rest.split_whitespace().collect())
            .collect();
        assert_eq!(seen.len(), WIDTHS.len(), "{}", String::from_utf8_lossy(&output.stderr));
        for (row, width) in seen.iter().zip(WIDTHS) {
            let (wide, narrow) = if width < 640 { ("none", "block") } else { ("block", "none") };
            assert_eq!(row[..], [&width.to_string(), "0", wide, narrow, background], "width, overflow, charts, colour");
        }
        for width in [390, 1280] {
            let shot = shots.join(format!("report-{width}-{}.png", if dark { "dark" } else { "light" }));
            let args = [
                format!("--window-size={width},2400"),
                format!("--screenshot={}", shot.display()),
                format!("file://{}", file.display()),
            ];
            run(&browser, &folder, dark, &args);
            let png = std::fs::read(&shot).unwrap_or_default();
            // PNG's first chunk (IHDR) begins with the width.
            let shown = png.get(16..20).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
            assert_eq!(shown, Some(width), "{}", shot.display());
            assert!(png.len() > 20_000, "{} is as good as empty", shot.display());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
