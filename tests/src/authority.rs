//! An authority that issues certificates to servers and their clients.

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, SanType,
};

/// An authority of certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    /// There is no randomness.
    #[must_use]
    pub fn new() -> Self {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(authority, key).expect("a certificate"))
    }

    /// Returns its certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a DNS name. Returns it and its key in PEM.
    #[must_use]
    pub fn issue_dns(&self, name: &str) -> (String, String) {
        self.issue(SanType::DnsName(ascii(name)))
    }

    /// Issues a certificate for a URI. Returns it and its key in PEM.
    #[must_use]
    pub fn issue_uri(&self, uri: &str) -> (String, String) {
        self.issue(SanType::URI(ascii(uri)))
    }

    fn issue(&self, name: SanType) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut certificate = CertificateParams::default();
        certificate.subject_alt_names = vec![name];
        // With the name of the authority, it would look as if it had signed itself.
        certificate.distinguished_name = DistinguishedName::new();
        certificate.distinguished_name.push(DnType::CommonName, "of a test");
        (certificate.signed_by(&key, &self.0).expect("a certificate").pem(), key.serialize_pem())
    }
}

fn ascii(text: &str) -> Ia5String {
    Ia5String::try_from(text).expect("ASCII")
}
