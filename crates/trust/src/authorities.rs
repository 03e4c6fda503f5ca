//! The authorities that a cluster has at a time: one, and while that is exchanged the one before as well.
//!
//! During an exchange the newest signs and both are believed. The one before has signed the newest ([`Authorities::behind`]): who
//! knows that one alone, because it was off, takes what the newest has signed, with that behind it. So the order in
//! which the machines of a cluster learn of an exchange does not matter. When it is finished the one before is worth nothing.

use base::ClusterId;
use rustls::pki_types::CertificateDer;

use crate::{
    Authority, Member, Secret, TrustError,
    authority::{is_signed_by, key_of},
};

/// See the module.
#[derive(Debug)]
pub struct Authorities {
    newest: Authority,
    former: Option<Authority>,
    behind: Vec<CertificateDer<'static>>,
}

/// A certificate that takes the place of another one.
#[derive(Debug)]
pub struct Renewed {
    /// Whose.
    pub member: Member,
    /// It.
    pub certificate: CertificateDer<'static>,
    /// SHA-256 of the public key that both certify.
    pub key: [u8; 32],
    /// The one before was signed by an authority that is being exchanged: it may be known to others.
    pub of_former: bool,
}

impl Authorities {
    /// Those of the cluster with this secret, and with the one before as long as they are exchanged.
    pub fn from_secrets(
        cluster: ClusterId,
        secret: &Secret,
        former: Option<&Secret>,
    ) -> Result<Authorities, TrustError> {
        let newest = Authority::from_secret(cluster, secret)?;
        let former = former.map(|secret| Authority::from_secret(cluster, secret)).transpose()?;
        let behind = former.iter().map(|former| former.certify(&newest)).collect::<Result<_, _>>()?;
        Ok(Authorities { newest, former, behind })
    }

    /// The one that signs.
    pub fn newest(&self) -> &Authority {
        &self.newest
    }

    /// The certificates of all, the newest first: what others are to believe.
    pub fn believed(&self) -> Vec<CertificateDer<'static>> {
        [&self.newest].into_iter().chain(&self.former).map(|one| one.certificate().clone()).collect()
    }

    /// What is shown behind a certificate that the newest has signed.
    pub fn behind(&self) -> &[CertificateDer<'static>] {
        &self.behind
    }

    /// Another certificate for the holder of one that one of them has signed, as [`Authority::renew`] does it.
    pub fn renew(
        &self,
        certificate: &CertificateDer<'_>,
        request: &[u8],
        life: std::time::Duration,
    ) -> Result<Renewed, TrustError> {
        let former = self.former.as_ref().filter(|former| is_signed_by(certificate, former.certificate()));
        let (member, renewed) =
            self.newest.renew(certificate, former.unwrap_or(&self.newest), request, life)?;
        Ok(Renewed { member, key: key_of(&renewed)?, certificate: renewed, of_former: former.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::MemberId;
    use wire::hello::Role;

    use super::*;
    use crate::{Nodes, Request, Roles};

    const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

    fn of(newest: u8, former: Option<u8>) -> Authorities {
        let secret = |byte| Secret::new([byte; 32]);
        Authorities::from_secrets(ClusterId(7), &secret(newest), former.map(secret).as_ref()).unwrap()
    }

    #[test]
    fn what_either_has_signed_is_renewed_by_the_newest_and_after_the_end_only_its_own() {
        let (before, during, after) = (of(1, None), of(2, Some(1)), of(2, None));
        assert_eq!((before.believed().len(), during.believed().len(), during.behind().len()), (1, 2, 1));
        let member = Member {
            cluster: ClusterId(7),
            id: MemberId(9),
            roles: Roles::of(&[Role::Client]),
            nodes: Nodes::These(vec![]),
        };
        let Request { key, request } = Request::new().unwrap();
        let old = before.newest().sign_request(&member, &request, Duration::from_nanos(1)).unwrap();
        let again = Request::of(&key).unwrap().request;
        let first = during.renew(&old, &again, MONTH).unwrap();
        assert!(first.of_former && first.member == member);
        assert!(is_signed_by(&first.certificate, after.newest().certificate()));
        for authorities in [&during, &after] {
            let second = authorities.renew(&first.certificate, &again, MONTH).unwrap();
            assert!(!second.of_former && second.key == first.key);
        }
        assert!(after.renew(&old, &again, MONTH).is_err());
        assert!(of(3, Some(2)).renew(&old, &again, MONTH).is_err(), "two exchanges ago");
        let other = Request::new().unwrap().request;
        assert!(matches!(during.renew(&old, &other, MONTH), Err(TrustError::OtherKey)));
    }
}
