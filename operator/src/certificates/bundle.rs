//! The contents of the certificates' Secret, and their renewal.
//!
//! A serving certificate is valid for 30 days and is renewed when a third of that is left. An authority is
//! valid for a year. When 120 days of it are left, a successor is created and trusted. The successor signs
//! from the next renewal of the serving certificate, when every sidecar has received it. The old authority
//! stays trusted until it expires, which is much longer than twice the life of a serving certificate.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

#[cfg(test)]
mod tests;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const SERVING_DAYS: i32 = 30;
const AUTHORITY_DAYS: i32 = 365;
const SUCCESSOR_DAYS: i32 = 120;

/// The contents of the Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    /// All trusted authorities, in PEM.
    pub trusted: String,
    /// The authority that signs, in PEM.
    signer: String,
    /// Private key of the signer, in PEM.
    signer_key: String,
    /// The authority that signs from the next renewal, with its private key, both in PEM.
    successor: Option<(String, String)>,
    /// The serving certificate, in PEM.
    pub certificate: String,
    /// Private key of the serving certificate, in PEM.
    pub key: String,
}

impl Bundle {
    /// Creates an authority and a serving certificate for `names`.
    pub fn new(names: &[String], now: Timestamp) -> anyhow::Result<Self> {
        let (signer, signer_key) = new_authority(now)?;
        let (certificate, key) = new_serving(&signer, &signer_key, names, now)?;
        Ok(Self { trusted: signer.clone(), signer, signer_key, successor: None, certificate, key })
    }

    /// Returns the bundle that replaces this one, or `None` if nothing is due for renewal.
    pub fn renewed(&self, names: &[String], now: Timestamp) -> anyhow::Result<Option<Self>> {
        let mut next = self.clone();
        if next.successor.is_none() && expiry(&next.signer)? < now + DAY * SUCCESSOR_DAYS {
            next.successor = Some(new_authority(now)?);
        }
        let serving_ends = expiry(&next.certificate)?;
        if serving_ends < now + DAY * (SERVING_DAYS / 3) {
            // One that is new is trusted nowhere yet. It signs only if the old one would end before the certificate.
            let is_known = self.successor.is_some() || expiry(&next.signer)? < now + DAY * SERVING_DAYS;
            if let Some((signer, signer_key)) = next.successor.take_if(|_| is_known) {
                (next.signer, next.signer_key) = (signer, signer_key);
            }
            (next.certificate, next.key) = new_serving(&next.signer, &next.signer_key, names, now)?;
        }
        next.trusted = next.trusted_at(now)?;
        Ok((next != *self).then_some(next))
    }

    /// Issues a serving certificate for another server, and returns it with its key. `present` is the certificate that the
    /// server has: if less than two thirds of its life are over and a trusted authority has signed it, the result is `None`.
    pub fn issue(
        &self,
        names: &[String],
        present: Option<&str>,
        now: Timestamp,
    ) -> anyhow::Result<Option<(String, String)>> {
        let is_good = |present: &str| {
            let lasts = expiry(present).is_ok_and(|ends| ends >= now + DAY * (SERVING_DAYS / 3));
            lasts && split_pem(&self.trusted).iter().any(|authority| is_signed_by(present, authority))
        };
        if present.is_some_and(is_good) {
            return Ok(None);
        }
        new_serving(&self.signer, &self.signer_key, names, now).map(Some)
    }

    /// Returns the signer, its successor and every older authority that has not expired.
    fn trusted_at(&self, now: Timestamp) -> anyhow::Result<String> {
        let mut trusted = vec![self.signer.clone()];
        trusted.extend(self.successor.iter().map(|(certificate, _)| certificate.clone()));
        for old in split_pem(&self.trusted) {
            if !trusted.contains(&old) && expiry(&old)? > now {
                trusted.push(old);
            }
        }
        Ok(trusted.concat())
    }

    /// Returns the data of the Secret.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        let (successor, successor_key) = self.successor.clone().unwrap_or_default();
        [
            ("ca.crt", &self.trusted),
            ("signer.crt", &self.signer),
            ("signer.key", &self.signer_key),
            ("successor.crt", &successor),
            ("successor.key", &successor_key),
            ("tls.crt", &self.certificate),
            ("tls.key", &self.key),
        ]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.clone()))
        .collect()
    }

    /// Reads the data of the Secret. The error names the damaged field.
    pub fn from_data(data: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let get =
            |name: &str| data.get(name).cloned().with_context(|| format!("the field {name} is missing"));
        let (successor, successor_key) = (get("successor.crt")?, get("successor.key")?);
        let bundle = Self {
            trusted: get("ca.crt")?,
            signer: get("signer.crt")?,
            signer_key: get("signer.key")?,
            successor: (!successor.is_empty()).then_some((successor, successor_key)),
            certificate: get("tls.crt")?,
            key: get("tls.key")?,
        };
        expiry(&bundle.signer).context("signer.crt")?;
        expiry(&bundle.certificate).context("tls.crt")?;
        KeyPair::from_pem(&bundle.signer_key).context("signer.key")?;
        KeyPair::from_pem(&bundle.key).context("tls.key")?;
        Ok(bundle)
    }
}

/// Returns each of the certificates.
pub(crate) fn split_pem(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    pem.split_inclusive(END).filter(|part| part.ends_with(END)).map(str::to_owned).collect()
}

fn expiry(pem: &str) -> anyhow::Result<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).context("not a certificate in PEM")?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).context("not an X.509 certificate")?;
    Ok(Timestamp::from_second(certificate.validity().not_after.timestamp())?)
}

/// Reports whether an authority has signed a certificate.
fn is_signed_by(certificate: &str, authority: &str) -> bool {
    let read = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).ok();
    let (Some(certificate), Some(authority)) = (read(certificate), read(authority)) else { return false };
    let certificate = x509_parser::parse_x509_certificate(&certificate);
    let authority = x509_parser::parse_x509_certificate(&authority);
    match (certificate, authority) {
        // Authorities have names of their own, with the time at which they were made.
        (Ok((_, certificate)), Ok((_, authority))) => certificate.issuer() == authority.subject(),
        _ => false,
    }
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i32) {
    // Valid since an hour ago: the clocks of other machines may be behind.
    let at = |instant: Timestamp| std::time::SystemTime::from(instant);
    params.not_before = at(now - SignedDuration::from_hours(1)).into();
    params.not_after = at(now + DAY * days).into();
}

fn new_authority(now: Timestamp) -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("sluice {}", now.strftime("%Y-%m-%dT%H:%M:%SZ")));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, AUTHORITY_DAYS);
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn new_serving(
    signer: &str,
    signer_key: &str,
    names: &[String],
    now: Timestamp,
) -> anyhow::Result<(String, String)> {
    ensure!(!names.is_empty(), "the serving certificate needs at least one name");
    let issuer = Issuer::from_ca_cert_pem(signer, KeyPair::from_pem(signer_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "sluice-operator");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut params, now, SERVING_DAYS);
    Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}
