//! `ssl_…` of the servers of one address, as `[listener.tls]`.

use super::names::Name;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::ciphers::{self, Versions};
use crate::output::{ListenerTls, Settings, list, quoted};

/// The versions of `ssl_protocols`.
pub(super) fn versions(names: &[&str]) -> Versions {
    let has = |n: &str| names.contains(&n);
    Versions {
        tls12: has("TLSv1.2"),
        tls13: has("TLSv1.3"),
        older: ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"].into_iter().any(has),
    }
}

/// A server as its address sees it.
pub(super) struct Member<'s, 'd> {
    pub scope: &'s Scope<'d>,
    pub server: &'d Directive,
    /// Its names at this address.
    pub names: &'s [Name],
    pub is_default: bool,
}

/// The TLS settings of an address. Those of the default server count for all, as in NGINX, but certificates and client
/// certificates, which every server has of its own. The default server is the first of `members`.
pub(super) fn listener<'d>(import: &mut Import<'d>, members: &[Member<'_, 'd>]) -> ListenerTls {
    let mut tls = ListenerTls::default();
    for member in members {
        certificates(import, member, &mut tls);
        client_auth(import, member, members.len() == 1, &mut tls);
    }
    let Some(default) = members.first() else { return tls };
    for (d, value) in members.iter().filter_map(|member| member.scope.value("ssl_stapling")) {
        match value {
            "on" => {
                tls.settings.set("ocsp_stapling", "true", &d.place);
                import
                    .differs_a_little(d, "ocsp_stapling: for all certificates of the address whose CA has a responder");
            }
            _ => import.same(d, "the default"),
        }
    }
    protocol(import, default, &mut tls);
    let first_versions = default.scope.last("ssl_protocols").map_or(Versions::DEFAULT, |d| versions(&d.arguments()));
    for member in &members[1..] {
        for name in ["ssl_protocols", "ssl_ciphers", "ssl_ecdh_curve", "ssl_conf_command", "ssl_early_data"] {
            let (Some(d), first) = (member.scope.last(name), default.scope.last(name)) else { continue };
            match first {
                Some(f) if f.id == d.id => {}
                Some(f) if f.arguments() == d.arguments() => import.same(d, "the same as the default server's"),
                _ if name == "ssl_ciphers" => suites_of_name(import, d, first, first_versions),
                _ if name == "ssl_protocols" => import.differs(
                    d,
                    "the default server's versions apply to the whole address, as in NGINX before 1.29.2 (with OpenSSL 1.1.1 and newer)",
                ),
                _ => import.differs_a_little(d, "the default server's setting applies to the whole address, as in NGINX"),
            }
        }
    }
    tls
}

/// `ssl_ciphers` of a server that is not the default one. In TLS 1.2, NGINX takes the suites of the server whose name the client asks
/// for; Sealane has one list for an address. `versions`: those of the address.
fn suites_of_name<'d>(import: &mut Import<'d>, d: &'d Directive, first: Option<&'d Directive>, versions: Versions) {
    if !versions.tls12 && versions.tls13 {
        return import.same(d, "not used: the address has TLS 1.3 only");
    }
    let of = |d: &Directive| ciphers::tls12(d.word(1).unwrap_or(""));
    let (own, others) = of(d);
    let common = first.map_or_else(|| ciphers::all_tls12().to_vec(), |f| of(f).0);
    match own.iter().any(|suite| common.contains(suite)) {
        true => import.differs(
            d,
            format!(
                "ciphers: the default server's suites of TLS 1.2 apply to the whole address; NGINX uses these for clients that ask for \
                 this name{}",
                if others { ". Clients that have none with ECDHE and AES-GCM or ChaCha20-Poly1305 are refused" } else { "" }
            ),
        ),
        false => import.decide(
            d,
            "NGINX uses these suites for clients of TLS 1.2 that ask for this name, and this address of Sealane has none of them: clients \
             without newer suites are refused. If there are such clients, let a server with these suites decrypt the connections: write a \
             [[host]] with this server's names, passthrough = \"NAME\" and this listener in listeners; otherwise, remove only this entry",
        ),
    }
}

fn certificates<'d>(import: &mut Import<'d>, member: &Member<'_, 'd>, tls: &mut ListenerTls) {
    let scope = member.scope;
    let (certs, keys) = (scope.all(&["ssl_certificate"]), scope.all(&["ssl_certificate_key"]));
    if let Some((d, "on")) = scope.value("ssl_reject_handshake") {
        match member.is_default {
            true => {
                tls.settings.set("strict_sni", "true", &d.place);
                import.differs(d, "strict_sni: names without a certificate are refused, whatever server_name says");
            }
            false => import.decide(
                d,
                "only the default server can refuse handshakes; remove the names of this server from the certificates",
            ),
        }
        certs.iter().chain(&keys).for_each(|d| import.same(d, "not used: the handshake is refused"));
        return;
    }
    if certs.is_empty() {
        import.decide(member.server, "has no ssl_certificate");
    }
    for (at, cert) in certs.iter().enumerate() {
        let Some(path) = cert.word(1) else { continue };
        let key = keys.get(at).and_then(|k| k.word(1));
        let odd =
            |p: &str| p.contains('$') || p.starts_with("data:") || p.starts_with("engine:") || p.starts_with("store:");
        if odd(path) || key.is_some_and(odd) {
            import.decide(cert, "name the files of certificate and key");
            continue;
        }
        let path = import.path(path);
        let key = key.map(|k| import.path(k)).filter(|k| *k != path);
        if !tls.certificates.iter().any(|(c, ..)| *c == path) {
            tls.certificates.push((path, key, cert.place.clone()));
        }
        import.same(cert, "certificates, chosen by the names in them");
        if let Some(key) = keys.get(at) {
            import.same(key, "certificates");
        }
    }
    if let Some((d, file)) = scope.value("ssl_stapling_file") {
        let entry = "in the entry of this certificate under certificates";
        import.missing(d, format!("write ocsp = {} {entry}", quoted(file)));
    }
}

/// What is said of the authorities of clients.
const X509_V1: &str = "client_auth.ca: Sealane refuses client certificates of X.509 version 1, which NGINX accepts: these clients could not \
     connect. Look at each client's certificate: openssl x509 -noout -text -in CLIENT.crt | grep Version";

/// Most intermediate certificates that Sealane takes from a client.
const MAX_DEPTH: u32 = 6;

fn client_auth<'d>(import: &mut Import<'d>, member: &Member<'_, 'd>, alone: bool, tls: &mut ListenerTls) {
    let scope = member.scope;
    let ca = scope.value("ssl_client_certificate");
    let trusted = scope.value("ssl_trusted_certificate");
    let crl = scope.value("ssl_crl");
    let mode = scope.value("ssl_verify_client");
    let wanted = match mode {
        Some((d, "on")) => Some((d, "require")),
        Some((d, "optional")) => Some((d, "optional")),
        Some((d, "optional_no_ca")) => {
            import.decide(
                d,
                "a certificate of an unknown CA is never accepted; name the CA and use \"optional\" or \"on\"",
            );
            None
        }
        Some((d, "off")) => {
            import.same(d, "the default");
            None
        }
        Some((d, _)) => {
            import.decide(d, "is not understood");
            None
        }
        None => None,
    };
    let Some((d, mode)) = wanted else {
        for (d, _) in [ca, crl].into_iter().flatten() {
            import.same(d, "not used: the server asks for no client certificates");
        }
        return;
    };
    if let (Some(_), Some((more, _))) = (ca, trusted) {
        import.decide(
            more,
            "NGINX also accepts client certificates of the CAs in this file: write one file with the CAs of both files, and name it in ca",
        );
    }
    let Some((ca, file)) = ca.or(trusted) else { return import.decide(d, "there is no ssl_client_certificate") };
    let mut auth = Settings::default();
    auth.set("mode", quoted(mode), &d.place);
    auth.set("ca", quoted(&import.path(file)), &ca.place);
    import.differs(ca, X509_V1);
    if let Some((d, file)) = crl {
        auth.set("crl", quoted(&import.path(file)), &d.place);
        import.same(d, "client_auth.crl");
    }
    match mode {
        "require" => import
            .differs(d, "client_auth: a client without a certificate is refused in the handshake, not with status 400"),
        _ => import.same(d, "client_auth"),
    }
    match scope.value("ssl_verify_depth").map(|(d, depth)| (d, depth.parse::<u32>())) {
        // NGINX's default.
        None => auth.set("depth", "1", &d.place),
        Some((d, Ok(depth))) => {
            auth.set("depth", depth.min(MAX_DEPTH).to_string(), &d.place);
            match depth <= MAX_DEPTH {
                true => import.same(d, "client_auth.depth"),
                false => import.differs(
                    d,
                    format!("client_auth.depth: a client sends at most {MAX_DEPTH} intermediate certificates"),
                ),
            }
        }
        Some((d, Err(_))) => import.decide(d, "is not a number: write depth in client_auth"),
    }
    let mut names: Vec<String> = member.names.iter().map(|n| n.pattern.clone()).collect();
    if member.is_default {
        // All names that have no setting of their own.
        names.clear();
        if !alone {
            import.differs(d, "applies to all names of this address that have no client_auth of their own");
        }
    }
    if !names.is_empty() {
        auth.set("for", list(&names), &d.place);
    }
    tls.client_auth.push(auth);
}

fn protocol<'d>(import: &mut Import<'d>, default: &Member<'_, 'd>, tls: &mut ListenerTls) {
    let scope = default.scope;
    let mut offered = Versions::DEFAULT;
    if let Some(d) = scope.last("ssl_protocols") {
        offered = versions(&d.arguments());
        match offered.list() {
            None => {
                import.decide(d, crate::report::OLD_TLS);
                offered = Versions::DEFAULT;
            }
            Some(chosen) => {
                if chosen.len() < 2 {
                    tls.settings.set("versions", list(chosen), &d.place);
                }
                match offered.older {
                    true => import
                        .differs(d, "TLS 1.0 and 1.1 are not supported: clients without a newer version are refused"),
                    false => import.same(d, "versions"),
                }
            }
        }
    }
    let conf = scope.all(&["ssl_conf_command"]);
    let mut tls13 = None;
    for d in conf {
        match (d.word(1), d.word(2)) {
            (Some("Ciphersuites"), Some(value)) => {
                let (suites, _) = ciphers::tls13(value);
                match suites.is_empty() {
                    true => import.decide(d, "Sealane has none of these suites"),
                    false => {
                        import.same(d, "ciphers");
                        tls13 = Some((suites, d));
                    }
                }
            }
            _ => import
                .decide(d, "OpenSSL's commands are not translated; write the equivalent setting in [listener.tls]"),
        }
    }
    let mut tls12 = None;
    if let Some((d, value)) = scope.value("ssl_ciphers") {
        let (suites, others) = ciphers::tls12(value);
        match (suites.is_empty() && offered.tls12, others) {
            (true, _) => import.decide(
                d,
                "Sealane supports none of these suites. For TLS 1.2, it has only ECDHE with AES-GCM and \
                 ChaCha20-Poly1305: decide whether clients may use these instead",
            ),
            (false, others) => {
                match others {
                    true => import.differs(d, "only those with ECDHE and AES-GCM or ChaCha20-Poly1305 are offered"),
                    false => import.same(d, "ciphers"),
                }
                tls12 = Some((suites, d));
            }
        }
    }
    if tls12.is_some() || tls13.is_some() {
        let all12 = tls12.as_ref().map_or_else(|| ciphers::all_tls12().to_vec(), |(s, _)| s.clone());
        let restricts = all12.len() < ciphers::all_tls12().len() && offered.tls12;
        let place = tls12.as_ref().map(|(_, d)| *d).or(tls13.as_ref().map(|(_, d)| *d));
        if let Some(d) = place.filter(|_| restricts || tls13.is_some()) {
            let names = ciphers::list(tls13.as_ref().map(|(s, _)| s.as_slice()), &all12, offered);
            tls.settings.set("ciphers", list(&names), &d.place);
        }
    }
    if let Some((d, value)) = scope.value("ssl_ecdh_curve") {
        let (groups, others) = ciphers::groups(value);
        match (value, groups.is_empty()) {
            ("auto", _) => import.same(d, "the default"),
            (_, true) => import.decide(d, "Sealane has none of these groups"),
            _ => {
                tls.settings.set("groups", list(&groups), &d.place);
                match others {
                    true => import.differs(d, "groups, without those that Sealane lacks"),
                    false => import.same(d, "groups"),
                }
            }
        }
    }
    if let Some((d, value)) = scope.value("ssl_early_data") {
        match value {
            "on" if offered.tls13 => {
                tls.settings.set("early_data", "\"16KiB\"", &d.place);
                import.differs_a_little(
                    d,
                    "early_data: only safe methods are accepted early, and each ticket can be used only once",
                );
            }
            _ => import.same(d, "the default"),
        }
    }
    if let Some((d, value)) = scope.value("ssl_session_tickets") {
        match value {
            "off" => import.differs(
                d,
                "sessions are resumed with tickets, whose keys are replaced every 12 hours and never leave memory",
            ),
            _ => import.same(d, "tickets"),
        }
    }
}
