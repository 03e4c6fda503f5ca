//! A real etcd with TLS, client certificates, users and passwords: who may, who may not, and what is said.

use std::{fs, path::PathBuf, time::Duration};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, TlsOptions};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};

use super::{
    super::{Changes, RedbStore, Store},
    Place, ReplicatedStore,
    member::Member,
};

/// DER as PEM.
fn pem(kind: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in der.chunks(3) {
        let bits =
            three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            text.push(if at <= three.len() { char::from(DIGITS[bits >> (18 - 6 * at) & 63]) } else { '=' });
        }
    }
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}

/// An authority whose certificates lie in a directory.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca: PathBuf,
}

impl Authority {
    fn new(dir: &std::path::Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let ca = dir.join(format!("{name}.pem"));
        fs::write(&ca, pem("CERTIFICATE", params.self_signed(&key).unwrap().der())).unwrap();
        Authority { issuer: Issuer::new(params, key), ca }
    }

    /// A certificate and its key.
    fn sign(&self, host: &str, expired: bool) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = self.ca.with_extension(format!("{host}.{expired}"));
        let key_file = self.ca.with_extension(format!("{host}.{expired}.key"));
        fs::write(&file, pem("CERTIFICATE", certificate.der())).unwrap();
        fs::write(&key_file, pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        (file, key_file)
    }
}

#[test]
fn etcd_over_tls_with_passwords_takes_who_may_and_says_why_others_may_not() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (Authority::new(dir.path(), "one"), Authority::new(dir.path(), "other"));
    let server = |(pem, key): (PathBuf, PathBuf)| {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let options = ["--cert-file".into(), text(pem), "--key-file".into(), text(key)];
        let clients = ["--client-cert-auth".into(), "--trusted-ca-file".into(), text(one.ca.clone())];
        let options: Vec<String> = options.into_iter().chain(clients).collect();
        Member::start_with("https", &options.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let client = one.sign("manager", false);
    let (good, expired) = (server(one.sign("127.0.0.1", false)), server(one.sign("127.0.0.1", true)));
    let elsewhere = server(one.sign("elsewhere", false));
    // The user root, and one who may do with the prefix what it wants.
    let bytes = |path: &PathBuf| fs::read(path).unwrap();
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(bytes(&one.ca)))
        .identity(Identity::from_pem(bytes(&client.0), bytes(&client.1)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = ConnectOptions::new().with_tls(tls);
        let endpoint = format!("https://{}", good.address);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let mut etcd = loop {
            assert!(std::time::Instant::now() < until, "etcd does not start");
            if let Ok(etcd) = Client::connect([&endpoint], Some(options.clone())).await {
                let mut etcd: Client = etcd;
                if etcd.get("x", None).await.is_ok() {
                    break etcd;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        etcd.user_add("root", "rootly", None).await.unwrap();
        etcd.role_add("root").await.unwrap();
        etcd.user_grant_role("root", "root").await.unwrap();
        etcd.user_add("rope", "twisted", None).await.unwrap();
        etcd.role_add("rope").await.unwrap();
        let permission = Permission::read_write("rope/").with_prefix();
        etcd.role_grant_permission("rope", permission).await.unwrap();
        etcd.user_grant_role("rope", "rope").await.unwrap();
        etcd.auth_enable().await.unwrap();
    });
    let place = |member: &Member, prefix: &str| {
        let place: Place = format!("etcds://{}/{prefix}", member.address).parse().unwrap();
        Place {
            ca: Some(one.ca.clone()),
            client: Some(client.clone()),
            user: Some(("rope".into(), "twisted".into())),
            ..place
        }
    };
    let table = dir.path().join("store.redb");
    drop(RedbStore::create(&table, 1 << 20).unwrap());
    let open = |place: &Place| ReplicatedStore::open(&table, 1 << 20, place, "a test", false);
    let store = open(&place(&good, "rope")).unwrap();
    store.commit(&Changes::new()).unwrap();
    store.tend().unwrap();
    assert!(!store.describe().contains("twisted"));
    drop(store);
    let right = place(&good, "rope");
    let wrong = [
        (Place { user: Some(("rope".into(), "untwisted".into())), ..right.clone() }, "`password` of [etcd]"),
        (Place { user: None, ..right.clone() }, "etcdctl role grant-permission"),
        (Place { ca: Some(other.ca.clone()), ..right.clone() }, "not of the authority that --etcd-ca names"),
        (Place { client: Some(other.sign("manager", false)), ..right.clone() }, "--etcd-cert"),
        (Place { client: None, ..right.clone() }, "--etcd-cert"),
        (place(&good, "other"), "etcdctl role grant-permission"),
        (place(&expired, "rope"), "has run out"),
        (place(&elsewhere, "rope"), "does not name the host"),
    ];
    // Asked once each: who opens a store waits for half a minute.
    for (place, remedy) in wrong {
        let error = super::to_etcd(&table, 1 << 20, &place, "a test").unwrap_err().to_string();
        assert!(error.contains(remedy) && !error.contains("twisted"), "{remedy}: {error}");
    }
}
