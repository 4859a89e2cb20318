//! The status page for everybody: on a phone, in the dark, by keyboard, and with a screen reader.

use sealane_interop::backend::Backend;
use sealane_interop::chromium::Browser;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::peers::axe;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, need, ports, skip};
use serde_json::Value;

/// Rules of axe: the levels A and AA of WCAG 2.0 to 2.2, and what its authors recommend beyond.
const RULES: &str = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']";

/// A gateway without anything that has happened.
fn empty(site: &Site) -> Gateway {
    configured(
        site,
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"a.example\"]\nrespond = {}\n",
    )
}

/// A gateway of which there is something to say in most tables, and problems.
fn busy(site: &Site, backend: &Backend) -> Gateway {
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let gateway = configured(
        site,
        &format!(
            "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"{HOST}\"]\nupstream = \"app\"\n\
             [[host.route]]\npath = \"/gone/with/a/path/that/is/rather/long/and/has/no/place/to/break\"\nupstream = \"gone\"\n\
             [[host.route]]\npath = \"/denied\"\ndeny = [\"0.0.0.0/0\"]\nrespond = {{}}\n\
             [[upstream]]\nname = \"app\"\nservers = [{:?}]\n[[upstream]]\nname = \"gone\"\nservers = [\"http://{}\"]\n",
            backend.url(),
            ports::free(),
        ),
    );
    let gone = "/gone/with/a/path/that/is/rather/long/and/has/no/place/to/break";
    for (path, status) in
        [("/", 200), (gone, 502), ("/denied", 403), (gone, 502), (gone, 502), (gone, 502), (gone, 502)]
    {
        assert_eq!(gateway.get(path).status(), status, "{path}");
    }
    gateway
}

fn opened(site: &Site, gateway: &Gateway) -> Option<Browser> {
    let chromium = sealane_interop::peers::find("chromium")?;
    let mut browser = Browser::start(&chromium, site.path());
    browser.open(&format!("http://{}/", gateway.admin), "document.body.dataset.looks >= 2");
    Some(browser)
}

/// What is wrong in the eyes of axe, and what is wider than the screen.
fn obstacles(browser: &mut Browser) -> Vec<String> {
    let run = format!(
        "axe.run(document, {{ runOnly: {{ type: 'tag', values: {RULES} }}, resultTypes: ['violations'] }}).then((found) => \
         found.violations.flatMap((v) => v.nodes.map((n) => `${{v.id}}: ${{n.html}}: ${{n.failureSummary}}`)))"
    );
    let texts = |value: Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
    };
    let mut found = texts(browser.evaluate(&run));
    let wide = "[document.documentElement, ...document.querySelectorAll('.scroll, pre, ul, fieldset')]\
                .filter((e) => e.getClientRects().length && e.scrollWidth > e.clientWidth + 1)\
                .map((e) => `too wide: ${e.tagName} ${e.className}: ${e.scrollWidth} > ${e.clientWidth}`)";
    found.extend(texts(browser.evaluate(wide)));
    found
}

#[test]
fn nothing_keeps_people_from_using_the_page() {
    need!("chromium");
    let axe = match axe() {
        Ok(path) => std::fs::read_to_string(path).expect("npm has installed it"),
        Err(why) => skip!("no axe-core: {why}"),
    };
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    for gateway in [empty(&site), busy(&site, &backend)] {
        let mut browser = opened(&site, &gateway).expect("it was looked for");
        let admin = gateway.admin;
        let is_listed = || admin_status(&gateway)["errors"].as_array().is_some();
        assert!(eventually(is_listed), "{admin}");
        // axe is no part of the page, whose policy lets nothing else run. That the page runs under its policy is tested elsewhere.
        browser.evaluate(&axe);
        // What changes while axe looks would be nobody's fault.
        browser.evaluate("document.getElementById('pause').click()");
        for (width, height, is_phone) in [(360, 740, true), (1280, 900, false)] {
            browser.screen(width, height, is_phone);
            for is_dark in [false, true] {
                browser.prefer_dark(is_dark);
                let paper = browser.evaluate("getComputedStyle(document.body).backgroundColor");
                assert_eq!(paper == "rgb(255, 255, 255)", !is_dark, "{paper}");
                let found = obstacles(&mut browser);
                assert!(found.is_empty(), "{width}, dark {is_dark}:\n{}", found.join("\n"));
            }
        }
    }
}

fn admin_status(gateway: &Gateway) -> Value {
    use sealane_control::admin::ask::{Where, ask};
    let text =
        ask(&Where::Address(gateway.admin), "GET", "/v1/status", sealane_interop::WAIT_LIMIT).expect("it answers");
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn empty_tables_explain_themselves() {
    need!("chromium");
    let site = Site::new();
    let gateway = empty(&site);
    let mut browser = opened(&site, &gateway).expect("it was looked for");
    let silent = "Object.entries(tables).filter(([, t]) => t.table.hidden ? t.said.textContent.length < 10 : !t.body.rows.length)\
                  .map(([name]) => name).join()";
    assert_eq!(browser.evaluate(silent), "");
    let hidden = browser.evaluate("Object.values(tables).filter((t) => t.table.hidden).length");
    assert!(hidden.as_u64().is_some_and(|hidden| hidden >= 5), "{hidden}");
    // Packets that the kernel sends again are counted for all processes: those of other tests may be told here.
    let problems = "[document.getElementById('problems-note').textContent, \
                    ...[...document.querySelectorAll('#problems-now strong')].map((kind) => kind.textContent)].join()";
    let told = browser.evaluate(problems);
    assert!(told == "No problem is known." || told == "1 problem, 1 critical.,Packet loss", "{told}");
}

/// Presses Tab until an expression is true of the element that has the focus, and asserts that each on the way shows that it has it.
fn tab_to(browser: &mut Browser, wanted: &str) {
    for _ in 0..300 {
        browser.press("Tab");
        let is_seen = "(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' && \
                       parseFloat(s.outlineWidth) >= 1; })()";
        assert!(
            browser.evaluate(&format!("document.activeElement === document.body || {is_seen}")) == true,
            "the focus is not seen: {}",
            browser.evaluate("document.activeElement.outerHTML.slice(0, 300)")
        );
        if browser.evaluate(&format!("((e) => Boolean({wanted}))(document.activeElement)")) == true {
            return;
        }
    }
    panic!("Tab never comes to {wanted}");
}

#[test]
fn the_page_can_be_used_by_keyboard_alone() {
    need!("chromium");
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = busy(&site, &backend);
    let mut browser = opened(&site, &gateway).expect("it was looked for");
    browser.screen(1280, 900, false);
    assert!(browser.becomes_true("tables.places.body.rows.length >= 3"));
    // The first key press offers to skip what is above the tables.
    tab_to(&mut browser, "e.className === 'skip'");
    assert!(browser.evaluate("document.activeElement.getBoundingClientRect().left >= 0") == true, "it is shown");
    browser.press("Enter");
    assert!(browser.becomes_true("location.hash === '#tables'"));
    // A table is searched.
    tab_to(&mut browser, "e.type === 'search' && e.closest('section').querySelector('#places')");
    for key in ["g", "o", "n", "e"] {
        browser.press(key);
    }
    assert!(browser.becomes_true("tables.places.body.rows.length === 1"));
    // And sorted: by the keyboard, and it is told by what.
    tab_to(&mut browser, "e.closest('th') && e.textContent === 'host'");
    browser.press("Enter");
    assert_eq!(browser.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')"), "ascending");
    browser.press("Enter");
    assert_eq!(browser.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')"), "descending");
    // Another range.
    browser.evaluate("window.scrollTo(0, 0); document.activeElement.blur(); document.querySelector('.skip').focus()");
    tab_to(&mut browser, "e.type === 'radio'");
    browser.press("ArrowRight");
    assert!(browser.becomes_true("past.range === '1h' && past.step === 10"), "{}", browser.evaluate("past.range"));
    // What changes by itself can be stopped.
    browser.evaluate("document.querySelector('.skip').focus()");
    tab_to(&mut browser, "e.id === 'pause'");
    browser.press(" ");
    assert_eq!(browser.evaluate("document.activeElement.getAttribute('aria-pressed')"), "true");
    assert_eq!(browser.evaluate("paused"), true);
    // Nobody is trapped: the focus comes to the last link.
    tab_to(&mut browser, "e.closest('footer')");
}

#[test]
fn a_screen_reader_is_told_what_the_page_shows() {
    need!("chromium");
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = busy(&site, &backend);
    let mut browser = opened(&site, &gateway).expect("it was looked for");
    assert!(
        browser.becomes_true("document.querySelectorAll('#problems-now li').length > 0"),
        "{}",
        admin_status(&gateway)
    );
    // On a phone, rows are blocks: they are rows of a table all the same.
    for (width, is_phone) in [(1280, false), (360, true)] {
        browser.screen(width, 900, is_phone);
        let spoken = browser.spoken();
        let has = |role: &str, name: &str| spoken.iter().any(|(r, n)| r == role && n.contains(name));
        for (role, name) in [
            ("heading", "Problems"),
            ("heading", "Hosts and routes"),
            ("table", "Hosts and routes"),
            ("columnheader", "requests/s"),
            ("cell", HOST),
            ("button", "requests/s"),
            ("searchbox", "Search"),
            ("radio", "5 minutes"),
            ("StaticText", "Server"),
            ("listitem", ""),
            ("status", ""),
            ("main", ""),
            ("banner", ""),
        ] {
            assert!(has(role, name), "{width}: {role} {name}: {spoken:?}");
        }
        let image = |name: &str| spoken.iter().any(|(r, n)| (r == "img" || r == "image") && n.contains(name));
        assert!(image("Requests per second: now") && image("requests. Half of them took"), "{width}: {spoken:?}");
    }
    // It reads out that there are problems, and not the same again each second.
    let changes = "new Promise((done) => { let n = 0; new MutationObserver((all) => n += all.length)\
                   .observe(document.getElementById('problems-note'), { childList: true, subtree: true, characterData: true }); \
                   const from = Number(document.body.dataset.looks); \
                   const wait = () => Number(document.body.dataset.looks) > from + 2 ? done(n) : setTimeout(wait, 50); wait(); })";
    let note = browser.evaluate("document.getElementById('problems-note').textContent");
    assert!(note.as_str().is_some_and(|note| note.contains("problem")), "{note}");
    assert!(browser.evaluate(changes).as_u64().is_some_and(|changes| changes <= 1), "it is not written anew each time");
}
