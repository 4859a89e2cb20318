//! Who knows the passwords of a tunnel's users: OpenLDAP's slapd, PAM, and FreeRADIUS, with Debian's OpenVPN as the client.

use crate::tunnel_world::{End, INSIDE, SERVER, World, count, said};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::process::{self, Server};
use sealane_interop::{eventually, need, peers, skip};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

const WRONG: &str = "AUTH_FAILED,wrong user name or password";
const NOT_NOW: &str = "AUTH_FAILED,TEMP:authentication is not possible at the moment";
const NOT_ALLOWED: &str = "AUTH_FAILED,this user may not connect";

const LDIF: &str = "dn: dc=example,dc=com
objectClass: dcObject
objectClass: organization
o: example
dc: example

dn: cn=gateway,dc=example,dc=com
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: gateway
userPassword: searching

dn: ou=people,dc=example,dc=com
objectClass: organizationalUnit
ou: people

dn: uid=al,ou=people,dc=example,dc=com
objectClass: inetOrgPerson
uid: al
cn: Al
sn: Al
departmentNumber: Sales
userPassword: right

dn: uid=eve,ou=people,dc=example,dc=com
objectClass: inetOrgPerson
uid: eve
cn: Eve
sn: Eve
userPassword: right

dn: ou=groups,dc=example,dc=com
objectClass: organizationalUnit
ou: groups

dn: cn=vpn,ou=groups,dc=example,dc=com
objectClass: groupOfNames
cn: vpn
member: uid=al,ou=people,dc=example,dc=com

dn: cn=Staff,ou=groups,dc=example,dc=com
objectClass: groupOfNames
cn: Staff
member: cn=gateway,dc=example,dc=com
member: uid=al,ou=people,dc=example,dc=com
";

/// Groups for clients, by groups of the directory.
const GROUPS: &str = "[[tunnel.group]]\nname = \"staff\"\nldap_groups = [\"staff\"]\naddresses = \"10.88.0.200/29\"\n\
                      [[tunnel.group]]\nname = \"others\"\ndeny = [\"10.88.0.1 icmp\"]";

/// Writes the folder of a directory, and `ldap.crt` and `ldap.password` for the gateway.
fn prepare_slapd(world: &World) {
    let made = rcgen::generate_simple_self_signed(vec![SERVER.to_owned()]).expect("a certificate");
    world.write("ldap.crt", &made.cert.pem());
    world.write("ldap.key", &made.signing_key.serialize_pem());
    world.write("ldap.password", "searching\n");
    std::fs::create_dir(world.path("directory")).expect("a folder can be made");
    let folder = world.path("");
    let folder = folder.display();
    let schemas = ["core", "cosine", "inetorgperson"].map(|name| format!("include /etc/ldap/schema/{name}.schema\n"));
    let config = format!(
        "{}modulepath /usr/lib/ldap\nmoduleload back_mdb\nTLSCACertificateFile {folder}/ldap.crt\nTLSCertificateFile \
         {folder}/ldap.crt\nTLSCertificateKeyFile {folder}/ldap.key\nsecurity simple_bind=128\ndatabase mdb\nmaxsize \
         1048576\nsuffix dc=example,dc=com\nrootdn cn=admin,dc=example,dc=com\nrootpw admin\ndirectory \
         {folder}/directory\naccess to attrs=userPassword by anonymous auth by * none\naccess to * by \
         dn.exact=cn=gateway,dc=example,dc=com read by * none\n",
        schemas.concat()
    );
    world.write("slapd.conf", &config);
    world.write("directory.ldif", LDIF);
    let mut add = world.command(End::Server, &peers::find("slapadd").expect("slapd's package has it"));
    let added: peers::Said = process::run(add.args(["-f", "slapd.conf", "-l", "directory.ldif"]), b"").into();
    assert_eq!(added.code, Some(0), "{}", added.all());
}

/// OpenLDAP's server, with StartTLS and with TLS from the beginning.
fn slapd(world: &World, program: &Path) -> Server {
    let mut command = world.command(End::Server, program);
    let urls = format!("ldap://{SERVER}:3890/ ldaps://{SERVER}:6360/");
    command.args(["-d", "256", "-f", "slapd.conf", "-h", &urls]);
    let server = Server::start(command, &world.path(""));
    assert!(eventually(|| listens(world, &format!("{SERVER}:6360"))), "{}", server.log());
    server
}

fn listens(world: &World, address: &str) -> bool {
    world.within(End::Server, || TcpStream::connect(address).is_ok())
}

/// Changes the directory as its administrator.
#[track_caller]
fn modify(world: &World, ldif: &str) {
    let mut command = world.command(End::Server, &peers::find("ldapmodify").expect("looked for before"));
    command.args([
        "-x",
        "-H",
        &format!("ldap://{SERVER}:3890/"),
        "-ZZ",
        "-D",
        "cn=admin,dc=example,dc=com",
        "-w",
        "admin",
    ]);
    command.env("LDAPTLS_CACERT", world.path("ldap.crt"));
    let said: peers::Said = process::run(&mut command, ldif.as_bytes()).into();
    assert_eq!(said.code, Some(0), "{}", said.all());
}

/// `[tunnel.ldap]` with these servers and these lines.
fn ldap(url: &str, more: &str) -> String {
    format!(
        "[tunnel.ldap]\nurl = {url}\nca = \"../ldap.crt\"\nbind_dn = \"cn=gateway,dc=example,dc=com\"\nbind_password_file = \
         \"../ldap.password\"\nuser_base = \"ou=people,dc=example,dc=com\"\n{more}\n"
    )
}

const BY_SEARCH: &str = "group_base = \"ou=groups,dc=example,dc=com\"\nrequire_groups = [\"VPN\"]";

/// A client with this name and this password is told this.
#[track_caller]
fn is_told(world: &World, server: &Server, profile: &Path, (user, password): (&str, &str), answer: &str) {
    world.write("typed", &format!("{user}\n{password}\n"));
    let client = world.openvpn(End::Client, profile, &["--auth-user-pass", "typed"]);
    assert!(said(&client, answer), "{user} {password}: {}\n{}", client.log(), server.log());
}

/// A password is right if slapd says so, over StartTLS and over TLS. A name is a value, and nothing else, in a search: no wildcard
/// and no part of a filter. Groups of the directory are those of the tunnel, and one of them is required.
#[test]
fn a_directory_decides_who_may_come_in() {
    let world = world!();
    let program = need!("slapd");
    prepare_slapd(&world);
    let directory = slapd(&world, &program);
    // The first server is not there.
    let start_tls = format!("[\"ldap://{SERVER}:3891\", \"ldap://{SERVER}:3890\"]");
    let table = ldap(&start_tls, BY_SEARCH);
    world.init(&format!("username_as_common_name = true\ntoken_lifetime = \"1h\"\n{table}{GROUPS}"));
    let profile = world.profile("laptop");
    let server = world.serve();
    for (user, password, answer) in [
        ("al", "wrong", WRONG),
        ("nobody", "right", WRONG),
        ("*", "right", WRONG),
        ("a*", "right", WRONG),
        ("al)(objectClass=*", "right", WRONG),
        ("al\\00", "right", WRONG),
        ("al ", "right", WRONG),
        // An empty password behind an answer to a question.
        ("al", "SCRV1::", WRONG),
        ("eve", "wrong", WRONG),
        ("eve", "right", NOT_ALLOWED),
    ] {
        is_told(&world, &server, &profile, (user, password), answer);
    }
    world.write("typed", "AL\nright\n");
    let client = world.connected(&profile, &["--auth-user-pass", "typed", "--reneg-sec", "2", "--auth-nocache"]);
    assert!(client.log().contains("ifconfig 10.88.0.20"), "{}", client.log());
    assert!(said(&server, "al is connected from"), "one name, however it is written: {}", server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 50, "0.1", 56), 50);
    assert!(client.log().contains("TLS: soft reset"), "{}", client.log());
    // Renewals with a token ask for the groups: who is in another one has its list, and who is in none of those required is out.
    let member = "member: uid=al,ou=people,dc=example,dc=com\n";
    modify(&world, &format!("dn: cn=Staff,ou=groups,dc=example,dc=com\nchangetype: modify\ndelete: member\n{member}"));
    assert!(eventually(|| world.pings(End::Client, INSIDE, 1, "0.1", 56) == 0), "{}", server.log());
    let replaced = "replace: member\nmember: cn=gateway,dc=example,dc=com\n";
    modify(&world, &format!("dn: cn=vpn,ou=groups,dc=example,dc=com\nchangetype: modify\n{replaced}"));
    assert!(said(&server, "is refused: this user may not connect"), "{}", server.log());
    drop((client, server));
    // TLS from the beginning, and groups that the user's own entry names.
    let toml = world.read("vpn/tunnel.toml").replace(&start_tls, &format!("\"ldaps://{SERVER}:6360\""));
    let own = "member_of = \"departmentNumber\"\nrequire_groups = [\"sales\"]";
    world.write("vpn/tunnel.toml", &toml.replace(BY_SEARCH, own).replace("[\"staff\"]", "[\"Sales\"]"));
    let server = world.serve();
    is_told(&world, &server, &profile, ("eve", "right"), NOT_ALLOWED);
    world.write("typed", "al\nright\n");
    let client = world.connected(&profile, &["--auth-user-pass", "typed"]);
    assert!(client.log().contains("ifconfig 10.88.0.20"), "{}", client.log());
    drop((client, server));
    // A server whose certificate is another's hears no password.
    let toml = world.read("vpn/tunnel.toml").replace("ca = \"../ldap.crt\"", "ca = \"ca.crt\"");
    world.write("vpn/tunnel.toml", &toml);
    let before = directory.log().matches("BIND").count();
    let server = world.serve();
    is_told(&world, &server, &profile, ("al", "right"), NOT_NOW);
    assert!(server.log().contains("certificate"), "{}", server.log());
    assert_eq!(directory.log().matches("BIND").count(), before, "{}", directory.log());
}

/// slapd stops, dies and comes back: nobody comes in meanwhile, everybody is told to try again, and who has a token stays.
#[test]
fn a_directory_that_is_away_refuses_for_now() {
    let world = world!();
    let program = need!("slapd");
    prepare_slapd(&world);
    let directory = slapd(&world, &program);
    let table = ldap(&format!("\"ldap://{SERVER}:3890\""), &format!("timeout = \"2s\"\n{BY_SEARCH}"));
    world.init(&format!("token_lifetime = \"1h\"\nduplicate_names = true\n{table}{GROUPS}"));
    let profile = world.profile("alice");
    let server = world.serve();
    world.write("al", "al\nright\n");
    let stays = world.connected(&profile, &["--auth-user-pass", "al", "--reneg-sec", "2", "--auth-nocache"]);
    let process = i32::try_from(directory.id()).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(process, Signal::STOP).expect("our own child can be signalled");
    is_told(&world, &server, &profile, ("al", "right"), NOT_NOW);
    assert!(said(&server, "the directory has not answered within 2000 ms"), "{}", server.log());
    kill_process(process, Signal::CONT).expect("our own child can be signalled");
    drop(directory);
    is_told(&world, &server, &profile, ("al", "right"), NOT_NOW);
    assert!(said(&server, "Connection refused"), "{}", server.log());
    assert!(eventually(|| count(&world, "unchecked") >= 2), "{}", server.log());
    assert_eq!(count(&world, "throttled"), 0, "a password that nobody has checked is no wrong one");
    let soft_resets = || stays.log().matches("TLS: soft reset").count();
    let before = soft_resets();
    assert!(eventually(|| soft_resets() >= before + 2), "{}", stays.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.1", 56), 3, "{}\n{}", stays.log(), server.log());
    let _directory = slapd(&world, &program);
    let client = world.connected(&profile, &["--auth-user-pass", "al", "--dev", "tun7"]);
    assert!(client.log().contains("ifconfig 10.88.0.20"), "{}", client.log());
}

/// What is wrong with the table is said with its line.
#[test]
fn mistakes_in_a_directory_are_named() {
    let world = world!();
    world.init("");
    let toml = world.read("vpn/tunnel.toml");
    world.write("ldap.password", "searching\n");
    for (table, message) in [
        ("url = \"ldap://u:p@h\"\nuser_base = \"dc=x\"", "the URL of a directory has no user and no password"),
        ("url = \"http://h\"\nuser_base = \"dc=x\"", "\"http://h\" is not the URL of a directory"),
        ("url = \"unix:///ldapi\"", "user_base"),
        (
            "url = \"unix:///ldapi\"\nuser_base = \"dc=x\"\nbind_dn = \"cn=x\"",
            "\"bind_dn\" needs \"bind_password_file\"",
        ),
        ("url = \"unix:///ldapi\"\nuser_base = \"dc=x\"\nuser_filter = \"(uid=x)\"", "it does not contain {user}"),
        (
            "url = \"unix:///ldapi\"\nuser_base = \"dc=x\"\nuser_filter = \"(uid={user}\"",
            "\")\" is missing, at character 12",
        ),
        ("url = \"unix:///ldapi\"\nuser_base = \"dc=x\"\nuser_attribute = \"a b\"", "not the name of an attribute"),
        (
            "url = \"unix:///ldapi\"\nuser_base = \"dc=x\"\nrequire_groups = [\"a\"]",
            "\"require_groups\" needs \"group_base\"",
        ),
        (
            "url = \"unix:///ldapi\"\nuser_base = \"dc=x\"\n[[tunnel.group]]\nname = \"a\"\nldap_groups = [\"a\"]",
            "there is no directory that names groups",
        ),
    ] {
        world.write("vpn/tunnel.toml", &format!("{toml}[tunnel.ldap]\n{table}\n"));
        let said = world.sealane(End::Server, &["check", "-c", "vpn/tunnel.toml"], b"");
        assert_ne!(said.code, Some(0), "{table}");
        assert!(said.all().contains(message) && said.all().contains("tunnel.toml:"), "{table}: {}", said.all());
    }
}

/// A program of the package.
fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/openvpn").join(name)
}

/// A file in /etc/pam.d, of this test alone.
struct PamService(PathBuf);

impl PamService {
    /// `None`: it cannot be written.
    fn new(text: &str) -> Option<Self> {
        let path = Path::new("/etc/pam.d").join(format!("sealane-test-{}", std::process::id()));
        std::fs::write(&path, text).ok().map(|()| Self(path))
    }

    fn name(&self) -> &str {
        self.0.file_name().and_then(|name| name.to_str()).expect("it is ours")
    }
}

impl Drop for PamService {
    fn drop(&mut self) {
        // Nobody else knows its name.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// PAM decides, through the packaged program and pamtester: with pam_pwdfile, and with a module that is not there.
#[test]
fn pam_decides_who_may_come_in() {
    let world = world!();
    need!("pamtester");
    let openssl = need!("openssl");
    if !["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64"]
        .iter()
        .any(|folder| Path::new(folder).join("security/pam_pwdfile.so").exists())
    {
        skip!("pam_pwdfile is not installed (cargo xtask setup)");
    }
    // With a quote, a backslash and blanks at both ends.
    let password = " ri'gh\"t\\ ";
    let mut hash = world.command(End::Server, &openssl);
    let hash: peers::Said =
        process::run(hash.args(["passwd", "-6", "-stdin"]), format!("{password}\n").as_bytes()).into();
    let file = world.write("passwords", &format!("al:{}\n", hash.text().trim()));
    let lines = format!("auth required pam_pwdfile.so pwdfile={}\naccount required pam_permit.so\n", file.display());
    let Some(service) = PamService::new(&lines) else { skip!("/etc/pam.d cannot be written") };
    world.init(&format!("auth_command = [\"{}\", \"{}\"]", packaged("auth-pam.sh").display(), service.name()));
    let profile = world.profile("alice");
    let server = world.serve();
    for (user, password) in [("al", "wrong"), ("bo", password), ("-v", password), ("al$(id)", password)] {
        is_told(&world, &server, &profile, (user, password), WRONG);
    }
    world.write("typed", &format!("al\n{password}\n"));
    let client = world.connected(&profile, &["--auth-user-pass", "typed"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    drop(client);
    std::fs::write(&service.0, "auth required pam_of_nobody.so\n").expect("it was written before");
    is_told(&world, &server, &profile, ("al", password), NOT_NOW);
    assert!(said(&server, "Module is unknown"), "{}", server.log());
    assert!(eventually(|| count(&world, "unchecked") == 1), "{}", server.log());
}

/// FreeRADIUS decides, through the packaged program and radclient; a password with everything that has a meaning in radclient's
/// input is one password, and a name that looks like another attribute is one name.
#[test]
fn radius_decides_who_may_come_in() {
    let world = world!();
    let program = need!("freeradius");
    need!("radclient");
    let password = "a\"b'c\\d%{User-Name}`id` $e, User-Name = 'al'\\";
    let escaped = password.replace('\\', "\\\\").replace('\'', "\\'");
    let folder = world.path("radius");
    std::fs::create_dir(&folder).expect("a folder can be made");
    world.write("radius/users", &format!("al Cleartext-Password := '{escaped}'\n"));
    world.write("radius.secret", "between us\n");
    let shown = folder.display();
    let config = format!(
        "prefix = /usr\nlogdir = {shown}\nrun_dir = {shown}\ndb_dir = {shown}\nlibdir = /usr/lib/freeradius\npidfile = \
         {shown}/pid\ncorrect_escapes = true\nlog {{\n destination = stdout\n auth = yes\n}}\nsecurity {{\n reject_delay = 0\n}}\n\
         client gateway {{\n ipaddr = {SERVER}\n secret = \"between us\"\n require_message_authenticator = yes\n}}\nmodules {{\n \
         pap {{\n }}\n files {{\n  filename = {shown}/users\n }}\n}}\nserver default {{\n listen {{\n  type = auth\n  ipaddr = \
         {SERVER}\n  port = 18120\n }}\n authorize {{\n  files\n  pap\n }}\n authenticate {{\n  Auth-Type PAP {{\n   pap\n  }}\n \
         }}\n}}\n"
    );
    world.write("radius/radiusd.conf", &config);
    let radius = || {
        let mut command = world.command(End::Server, &program);
        command.args(["-f", "-l", "stdout", "-d"]).arg(&folder);
        let server = Server::start(command, &world.path(""));
        assert!(said(&server, "Ready to process requests"), "{}", server.log());
        server
    };
    let running = radius();
    let check = packaged("auth-radius.sh");
    let (check, secret) = (check.display(), world.path("radius.secret"));
    world.init(&format!("auth_command = [\"{check}\", \"{SERVER}:18120\", \"{}\"]", secret.display()));
    let profile = world.profile("alice");
    let server = world.serve();
    for (user, password) in [("al", "wrong"), ("x', User-Name = 'al", password), ("al'", password), ("bo", password)] {
        is_told(&world, &server, &profile, (user, password), WRONG);
    }
    world.write("typed", &format!("al\n{password}\n"));
    let client = world.connected(&profile, &["--auth-user-pass", "typed"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    drop((client, running));
    is_told(&world, &server, &profile, ("al", password), NOT_NOW);
    assert!(said(&server, "auth-radius: "), "{}", server.log());
    assert!(!server.log().contains("a\\\"b") && !server.log().contains("c\\d"), "no password: {}", server.log());
}
