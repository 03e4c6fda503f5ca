//! Who may look at the page. On a loopback address without a password: whoever is on this machine, by a name of this
//! machine only, so that no other site's page can have its name point here. With a password: whoever has it, or shows a
//! certificate of the cluster that may give commands.
//! The password is drawn, 128 bits of it; what is kept is its hash.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::Result;
use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use trust::Member;
use wire::hello::Role;

use super::{asking::Asking, listener::Shown};
use crate::{
    args::Dir,
    cluster_dir::page::{self, Hash},
    output,
};

/// Who comes with a wrong password waits so long for the answer ...
const WRONG_DELAY: Duration = Duration::from_millis(500);
/// ... and so many may wait; the others are sent away.
const WRONG_MAX: usize = 4;

/// Nothing is loaded from elsewhere, framed, sent anywhere, or kept.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The rule of one page.
pub struct Access {
    password: Option<Hash>,
    wrong: Semaphore,
    /// Whom to ask about certificates; none: nobody is let in by one.
    asking: Option<Arc<Asking>>,
}

impl Access {
    /// With this password, or none.
    pub fn new(password: Option<Hash>, asking: Option<Arc<Asking>>) -> Access {
        Access { password, wrong: Semaphore::new(WRONG_MAX), asking }
    }

    /// Whether who shows this certificate may look: who gives commands, and is not shut out by now. Its signature was checked.
    async fn lets_in(&self, member: &Member) -> bool {
        let Some(asking) = self.asking.as_ref().filter(|_| member.roles.contains(Role::Admin)) else {
            return false;
        };
        let asked = asking.with_link(async |link| link.cluster().await);
        asked.await.is_ok_and(|report| !report.map.revoked.contains(&member.id))
    }
}

/// `ropewalk analytics password`: draws one, shows it once, keeps its hash.
pub fn password(dir: &Dir) -> Result<()> {
    output::line(page::draw_password(&dir.open()?.path)?);
    output::note(
        "shown this once; any user name goes with it. A page that runs asks for it once it is started anew",
    );
    Ok(())
}

/// The password of a request (RFC 7617), whoever says it.
fn given(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, digits) = text.split_once(' ')?;
    let plain = scheme.eq_ignore_ascii_case("basic").then(|| base64(digits.trim()))??;
    Some(String::from_utf8(plain).ok()?.split_once(':')?.1.to_owned())
}

/// What stands there in base 64.
fn base64(digits: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0u32, 0);
    for digit in digits.trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

/// Whether both are the same, in a time that does not tell where they differ.
fn same(a: &Hash, b: &Hash) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

/// Whether a request names this machine as one does who sits at it.
fn is_local(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name);
    // An address that is written out leads nowhere else.
    let ip = name.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Whether the page of another site asks.
fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let site = text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let origin =
        text("origin").is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != text("host"));
    site || origin
}

/// Lets through who may, and marks every answer.
pub async fn check(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let shown = request.extensions().get::<ConnectInfo<Shown>>();
    let member = shown.and_then(|ConnectInfo(Shown(member))| member.get()).cloned();
    let mut response = match refusal(&access, request.headers(), member).await {
        // Who is refused is not to keep one of the few places for connections.
        Some(mut refusal) => {
            refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            refusal
        }
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn refusal(access: &Access, headers: &HeaderMap, member: Option<Member>) -> Option<Response> {
    if is_foreign(headers) && headers.get("sec-fetch-mode").is_none_or(|mode| mode != "navigate") {
        return Some((StatusCode::FORBIDDEN, "asked by the page of another site\n").into_response());
    }
    let Some(hash) = &access.password else {
        let says = "without a password this page is at localhost and loopback addresses (127.0.0.1) only\n";
        return (!is_local(headers)).then(|| (StatusCode::FORBIDDEN, says).into_response());
    };
    if let Some(member) = member
        && access.lets_in(&member).await
    {
        return None;
    }
    let said = given(headers);
    if said.as_ref().is_some_and(|said| same(hash, &Sha256::digest(said).into())) {
        return None;
    }
    if said.is_some() {
        let Ok(_waits) = access.wrong.try_acquire() else {
            let says = "too many wrong passwords: try again in a second\n";
            return Some((StatusCode::TOO_MANY_REQUESTS, says).into_response());
        };
        tokio::time::sleep(WRONG_DELAY).await;
    }
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"ropewalk analytics\", charset=\"UTF-8\"")];
    Some(
        (StatusCode::UNAUTHORIZED, ask, "the password of `ropewalk analytics password` is asked for\n")
            .into_response(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[tokio::test]
    async fn who_may_look_and_who_may_not() {
        let status = async |access: &Access, all: &[(&'static str, &str)]| {
            refusal(access, &headers(all), None).await.map(|refusal| refusal.status().as_u16())
        };
        let open = Access::new(None, None);
        for host in ["localhost", "localhost:9800", "127.0.0.1:1", "127.0.0.2:9470", "[::1]:9800"] {
            assert_eq!(status(&open, &[("host", host)]).await, None, "{host}");
        }
        for host in ["", "rope.example:9800", "localhost.example", "127.0.0.1.example:80", "10.0.0.1"] {
            assert_eq!(status(&open, &[("host", host)]).await, Some(403), "{host}");
        }
        let local = ("host", "localhost:9800");
        assert_eq!(status(&open, &[local, ("origin", "http://localhost:9800")]).await, None);
        assert_eq!(status(&open, &[local, ("origin", "http://localhost:80")]).await, Some(403));
        assert_eq!(status(&open, &[local, ("sec-fetch-site", "cross-site")]).await, Some(403));
        let link = [local, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert_eq!(status(&open, &link).await, None, "a link from elsewhere may be followed");

        let closed = Access::new(Some(Sha256::digest("secret").into()), None);
        assert_eq!(status(&closed, &[local]).await, Some(401));
        // me:secret, me:secreT, without a colon, not base 64
        for (said, answer) in
            [("bWU6c2VjcmV0", None), ("bWU6c2VjcmVU", Some(401)), ("c2VjcmV0", Some(401)), ("%", Some(401))]
        {
            let said = format!("Basic {said}");
            assert_eq!(status(&closed, &[("host", "any"), ("authorization", &said)]).await, answer, "{said}");
        }
    }

    #[tokio::test]
    async fn wrong_passwords_wait_and_too_many_are_sent_away() {
        let closed = Access::new(Some([0; 32]), None);
        let wrong = headers(&[("host", "h"), ("authorization", "Basic bWU6c2VjcmV0")]);
        let _held = closed.wrong.acquire_many(WRONG_MAX as u32).await.unwrap();
        assert_eq!(refusal(&closed, &wrong, None).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    }
}
