//! The second NGINX behind Sealane, for files, FastCGI and caches.

use sealane_config::Document;
use sealane_import::{Imported, Memory, nginx};
use std::path::Path;

const ADDRESS: &str = "127.0.0.1:8081";

/// The result, and the file for the second NGINX.
fn import(text: &str, is_wanted: bool) -> (Imported, String) {
    let reader = Memory::of("/etc/nginx/nginx.conf", text.as_bytes());
    let address = is_wanted.then(|| ADDRESS.parse().expect("an address"));
    let imported =
        nginx::import_with(&reader, Path::new("/etc/nginx/nginx.conf"), address).unwrap_or_else(|e| panic!("{e}"));
    let file = imported.files.iter().find(|(name, _)| name == "inner-nginx.conf");
    let file = file.map(|(_, content)| String::from_utf8(content.clone()).expect("UTF-8")).unwrap_or_default();
    (imported, file)
}

fn blog(more: &str) -> String {
    format!(
        "user www-data; events {{}} http {{ limit_req_zone $binary_remote_addr zone=login:1m rate=1r/s;
         server {{ listen 80; server_name blog.example; root /srv/blog; index index.php;
         location / {{ try_files $uri $uri/ /index.php?$args; }}
         location ~ \\.php$ {{ try_files $uri =404; limit_req zone=login burst=5; fastcgi_pass unix:/run/php.sock;
         fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_param HTTPS $https if_not_empty; }}
         location /private/ {{ allow 10.0.0.0/8; deny all; }}
         location /api/ {{ proxy_pass http://10.0.0.1; }} {more} }} }}"
    )
}

/// The part of a text from a line on, up to the end of its block.
fn block<'t>(text: &'t str, begin: &str) -> &'t str {
    let at = text.find(begin).unwrap_or_else(|| panic!("{begin}: {text}"));
    let behind = &text[at..];
    &behind[..behind.find('}').unwrap_or(behind.len())]
}

#[test]
fn files_and_fastcgi_are_served_by_a_second_nginx() {
    let (imported, file) = import(&blog(""), true);
    let Imported { toml, report, .. } = imported;
    assert_eq!(report.undecided(), Vec::<String>::new());
    assert!(!toml.contains("501"), "{toml}");
    assert!(toml.contains("\"http://127.0.0.1:8081\"") && toml.contains("upstream = \"inner-nginx\""), "{toml}");
    assert!(toml.contains("request_headers.set.X-Real-IP = \"{client_address}\""), "{toml}");
    // Sealane decides about clients.
    let private = &toml[toml.find("path = \"/private/\"").unwrap_or_else(|| panic!("{toml}"))..];
    assert!(private.contains("allow = [\"10.0.0.0/8\"]"), "{toml}");
    // All locations are there, and what checks requests that one leads to another.
    assert!(file.contains("listen 127.0.0.1:8081;") && file.contains("real_ip_header X-Real-IP;"), "{file}");
    let php = block(&file, "location ~ \\\\.php$ {");
    assert!(
        php.contains("fastcgi_pass unix:/run/php.sock;") && php.contains("limit_req zone=login burst=5;"),
        "{file}"
    );
    // The connection to the second NGINX has no TLS.
    assert!(file.contains("map $http_x_forwarded_proto $sealane_https { https on; }"), "{file}");
    assert!(file.contains("fastcgi_param HTTPS \"${sealane_https}\" if_not_empty;"), "{file}");
    assert!(block(&file, "location /private/ {").contains("deny all;"), "{file}");
    // What Sealane serves itself is not there.
    assert!(block(&file, "location /api/ {").contains("return 404;"), "{file}");
    assert!(file.contains("limit_req_zone $binary_remote_addr zone=login:1m rate=1r/s;"), "{file}");
    let read = Document::of_file(Path::new("sealane.toml"), toml.as_bytes()).expect("TOML").read_offline();
    assert!(read.is_ok(), "{toml}");
}

#[test]
fn without_the_option_nothing_changes() {
    let (imported, file) = import(&blog(""), false);
    assert!(file.is_empty() && imported.files.is_empty());
    assert!(imported.toml.contains("status = 501") && !imported.toml.contains("inner-nginx"), "{}", imported.toml);
    // A server that has nothing for it needs none.
    let (imported, file) = import("http { server { listen 80; location / { proxy_pass http://10.0.0.1; } } }", true);
    assert!(file.is_empty() && imported.files.is_empty(), "{file}");
}

#[test]
fn what_the_second_nginx_cannot_do_alike_gets_no_requests() {
    for location in [
        // Other checks,
        "location /x/ { auth_request /auth; root /srv; } location = /auth { internal; proxy_pass http://10.0.0.9; }",
        // variables whose value is another one there, or not known,
        "location /x/ { root /srv/$ssl_client_serial; }",
        "location /x/ { set $a $nobody; root /srv/$a; }",
        // and directives that nobody knows.
        "location /x/ { root /srv; no_such_directive on; }",
        "location /x/ { if ($arg_a) { set $b 1; } root /srv; }",
    ] {
        let (imported, file) = import(&blog(location), true);
        // There is also a route for what the location with an expression gets.
        let is_its = |route: &&str| route.contains("path = \"/x/\"") && !route.contains("path_regex");
        let route = imported.toml.split("\n\n").find(is_its).unwrap_or_else(|| panic!("{location}: {}", imported.toml));
        assert!(route.contains("status = 501"), "{location}: {}", imported.toml);
        assert!(block(&file, "location /x/ {").contains("return 404;"), "{location}: {file}");
    }
}

#[test]
fn a_cache_is_in_the_second_nginx() {
    let text = "events {} http { proxy_cache_path /var/cache/nginx/shop keys_zone=shop:10m; upstream app { server 10.0.0.5:8080; }
         map $cookie_session $member { default 1; '' 0; }
         server { listen 443 ssl; server_name shop.example; ssl_certificate a.pem; ssl_certificate_key a.key;
         location / { proxy_cache shop; proxy_cache_bypass $member; proxy_set_header Host $host;
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_read_timeout 20s; proxy_pass http://app; } } }";
    let (Imported { toml, report, .. }, file) = import(text, true);
    assert_eq!(report.undecided(), Vec::<String>::new());
    assert!(toml.contains("upstream = \"inner-nginx\"") && toml.contains("first_byte_timeout = \"20s\""), "{toml}");
    let location = block(&file, "location / {");
    assert!(location.contains("proxy_pass http://app;"), "{file}");
    assert!(location.contains("proxy_cache shop;") && location.contains("proxy_set_header Host $host;"), "{file}");
    // Sealane has added the address already.
    assert!(!location.contains("X-Forwarded-For"), "{file}");
    // Pages over TLS are other ones.
    assert!(file.contains("proxy_cache_key \"${http_x_forwarded_proto}$proxy_host$request_uri\";"), "{file}");
    // The original may still use its folder.
    assert!(file.contains("proxy_cache_path /var/cache/nginx/shop-sealane keys_zone=shop:10m;"), "{file}");
    assert!(file.contains("map $cookie_session $member {") && file.contains("upstream app {"), "{file}");
    assert!(!report.to_text(false).contains("no cache"), "{}", report.to_text(false));
}

#[test]
fn each_server_has_a_port_of_its_own() {
    let server = |name: &str, port: u16| {
        format!("server {{ listen {port}; server_name {name}; location / {{ root /srv/{name}; }} }}")
    };
    let text = format!("events {{}} http {{ {} {} }}", server("a.example", 80), server("b.example", 8082));
    let (imported, file) = import(&text, true);
    // The original listens on 8082.
    for port in ["8081", "8083"] {
        assert!(imported.toml.contains(&format!("\"http://127.0.0.1:{port}\"")), "{}", imported.toml);
        assert!(file.contains(&format!("listen 127.0.0.1:{port};")), "{file}");
    }
}

/// A site with PHP whose parameters have a variable. `listen`: its ports.
fn php(listen: &str, parameter: &str) -> String {
    format!(
        "events {{}} http {{ server {{ {listen} server_name blog.example; root /srv/blog; index index.php;
         location / {{ try_files $uri $uri/ /index.php?$args; }}
         location ~ \\.php$ {{ fastcgi_pass unix:/run/php.sock; fastcgi_param P {parameter}; }} }} }}"
    )
}

#[test]
fn the_second_nginx_knows_the_one_port_of_a_server() {
    let (Imported { toml, .. }, file) = import(&php("listen 17443;", "$server_port"), true);
    assert!(!toml.contains("501") && file.contains("fastcgi_param P \"${sealane_port}\";"), "{toml}\n{file}");
    // Its own port says which server of the original it is.
    let map = "map $server_port:$http_x_forwarded_proto $sealane_port { ~^8081: 17443; ~:https$ 443; default 80; }";
    assert!(file.contains(map), "{file}");
    let (Imported { toml, .. }, file) = import(&php("listen 80; listen 443;", "$server_port"), true);
    assert!(!toml.contains("501"), "{toml}");
    assert!(file.contains("map $http_x_forwarded_proto $sealane_port { https 443; default 80; }"), "{file}");
}

#[test]
fn the_report_names_the_variable_that_keeps_a_location_out() {
    for (listen, variable, why) in [
        ("listen 80; listen 8080;", "$server_port", "several ports"),
        ("listen 80;", "$ssl_client_serial", "not known"),
    ] {
        let (Imported { toml, report, .. }, file) = import(&php(listen, variable), true);
        assert!(toml.contains("status = 501") && !file.contains("fastcgi_pass"), "{toml}\n{file}");
        let text = report.to_short_text();
        assert!(!text.contains("import again with --inner-nginx"), "{text}");
        let line = text.lines().find(|l| l.contains("fastcgi_param P")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(&format!("{variable} in this line")) && line.contains(why), "{line}");
    }
    let (Imported { report, .. }, _) = import(&php("listen 80;", "$ssl_client_serial"), false);
    let text = report.to_short_text();
    assert!(text.contains("import again with --inner-nginx") && !text.contains("in this line"), "{text}");
}
