//! Who may look: by name and method, by password, by certificate.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use super::{
    attacks,
    browser::http,
    common::{Cluster, ok, refused, until},
    serve, serve_with,
};

/// Only by this machine's names, only GET, nothing from elsewhere; bounds are told.
pub fn who_may_look(port: u16) {
    let (status, head, text) = http(port, "GET", "/", &[], "");
    assert!(
        status == 200 && head.to_lowercase().contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    for outside in ["http://", "https://", "style=", "onclick"] {
        assert!(!text.contains(outside), "the page must need nothing else: {outside}");
    }
    let status = |method: &str, path: &str, headers: &[(&str, &str)]| http(port, method, path, headers, "").0;
    assert_eq!(status("GET", "/api/statistics", &[("Host", "rope.example")]), 403);
    assert_eq!(status("GET", "/api/statistics", &[("Origin", "http://rope.example")]), 403);
    assert_eq!(status("POST", "/api/query", &[]), 405);
    assert_eq!(status("GET", "/api/nothing", &[]), 404);
    assert_eq!(status("GET", "/api/query?q=file.ops&from=5&to=3", &[]), 400);
    assert_eq!(status("GET", &format!("/api/live?{}", "q=file.ops&".repeat(17)), &[]), 429);
}

#[test]
fn a_page_for_others_wants_a_password() {
    let cluster = Cluster::three(&["--pdisk-size", "256m", "--block-size", "1m"]);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let said = refused(&["analytics", "serve", "--dir", dir, "--listen", "0.0.0.0:0"]);
    assert!(said.contains("ropewalk analytics password"), "{said}");
    let (page, port) = serve(dir);
    attacks::hold(port, page.0.id());
    drop(page);
    let password = ok(&["analytics", "password", "--dir", dir]);
    assert_eq!(password.trim().len(), 32);
    let kept = fs::read_to_string(cluster.dir().join("analytics.password")).unwrap();
    assert!(!kept.contains(password.trim()));
    let (_page, port) = serve(dir);
    let with = |password: &str| {
        let plain =
            Command::new("sh").args(["-c", "printf %s \"me:$0\" | base64 -w0", password]).output().unwrap();
        let said = format!("Basic {}", String::from_utf8(plain.stdout).unwrap());
        http(port, "GET", "/api/statistics", &[("Authorization", &said), ("Host", "any.name")], "").0
    };
    assert_eq!(http(port, "GET", "/", &[], "").0, 401);
    // The place of who would stay is another's at once.
    let mut refused = TcpStream::connect(("127.0.0.1", port)).unwrap();
    refused.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    refused.write_all(b"GET / HTTP/1.1\r\nHost: any.name\r\n\r\n").unwrap();
    let mut said = String::new();
    refused.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 401"), "{said}");
    assert_eq!(with("wrong"), 401);
    assert_eq!(with(password.trim()), 200);
    by_tls(&cluster, dir, password.trim());
}

/// A machine's key without the public half that stands behind it, which OpenSSL 3.0 does not read (docs/security.md).
const FOR_OPENSSL: &str = "{ printf '\\060\\056\\002\\001\\000\\060\\005\\006\\003\\053\\145\\160\\004\\042\\004\\040'; \
     grep -v -- '---' \"$0\" | base64 -d | tail -c +17 | head -c 32; } | openssl pkey -inform DER -out \"$1\"";

/// What the page answers over TLS.
pub fn by_curl(authority: &Path, port: u16, options: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-s", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"])
        .arg(authority)
        .args(options)
        .arg(format!("https://127.0.0.1:{port}/api/statistics"))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Encrypted, by a certificate that is the page's own; let in are who has the password, and who shows a certificate of the
/// cluster that may give commands, as long as it is not shut out.
fn by_tls(cluster: &Cluster, dir: &str, password: &str) {
    let (_page, port) = serve_with(dir, &["--tls"]);
    let authority = cluster.dir().join("keys/page.crt");
    let curl = |options: &[&str]| by_curl(&authority, port, options);
    assert_eq!(curl(&[]), "401");
    assert_eq!(curl(&["-u", &format!("me:{password}")]), "200");
    // Who speaks no TLS holds up nobody.
    let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(curl(&["-u", &format!("me:{password}")]), "200");

    let joined = tempfile::Builder::new().prefix("ropewalk-page-").tempdir().unwrap();
    for (role, name, answer) in [("client", "mounts", "401"), ("admin", "looks", "200")] {
        let token = ok(&["node", "token", "--dir", dir, "--role", role]);
        let token = token.split_whitespace().find(|word| word.len() > 100).unwrap().to_owned();
        let place = joined.path().join(name);
        ok(&["join", &token, "--dir", place.to_str().unwrap(), "--name", name]);
        let key = |file: &str| place.join("keys").join(file).display().to_string();
        let own = key("openssl.key");
        let made = Command::new("sh").args(["-c", FOR_OPENSSL, &key("machine.key"), &own]).status().unwrap();
        assert!(made.success());
        let shows = ["--cert", &key("machine.crt"), "--key", &own];
        // Each time the page asks the manager, which may not be heard.
        until(&format!("{answer} for {role}"), || curl(&shows) == answer);
        ok(&["node", "revoke", "--dir", dir, name]);
        until(&format!("{role} is shut out"), || curl(&shows) == "401");
    }
    // The same certificate the next time.
    let before = fs::read(&authority).unwrap();
    let (_page, _) = serve_with(dir, &["--tls"]);
    assert_eq!(fs::read(&authority).unwrap(), before);
}
