//! What the Secret holds, and when which part of it is renewed.
//!
//! A serving certificate lives 30 days and is renewed when a third of that is left. An authority lives a year. When
//! 120 days of it are left its successor is made and trusted, but signs only from the next renewal on: by then every
//! sidecar has long read of it. The old one stays trusted until it ends, far longer than twice a certificate's life.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const SERVING_DAYS: i32 = 30;
const AUTHORITY_DAYS: i32 = 365;
const SUCCESSOR_DAYS: i32 = 120;

/// Everything that the Secret holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    /// All trusted authorities, PEM.
    pub trusted: String,
    /// The authority that signs, PEM.
    signer: String,
    signer_key: String,
    /// The authority that will sign after the next renewal.
    successor: Option<(String, String)>,
    /// The serving certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: String,
}

impl Bundle {
    /// A new authority and a certificate for `names`.
    pub fn new(names: &[String], now: Timestamp) -> anyhow::Result<Self> {
        let (signer, signer_key) = authority(now)?;
        let (certificate, key) = serving(&signer, &signer_key, names, now)?;
        Ok(Self { trusted: signer.clone(), signer, signer_key, successor: None, certificate, key })
    }

    /// The bundle that should take this one's place, if any should.
    pub fn renewed(&self, names: &[String], now: Timestamp) -> anyhow::Result<Option<Self>> {
        let mut next = self.clone();
        if next.successor.is_none() && expiry(&next.signer)? < now + DAY * SUCCESSOR_DAYS {
            next.successor = Some(authority(now)?);
        }
        let serving_ends = expiry(&next.certificate)?;
        if serving_ends < now + DAY * (SERVING_DAYS / 3) {
            if let Some((signer, signer_key)) = next.successor.take() {
                (next.signer, next.signer_key) = (signer, signer_key);
            }
            (next.certificate, next.key) = serving(&next.signer, &next.signer_key, names, now)?;
        }
        next.trusted = next.trusted_at(now)?;
        Ok((next != *self).then_some(next))
    }

    /// The signer, its successor, and every older authority that has not ended.
    fn trusted_at(&self, now: Timestamp) -> anyhow::Result<String> {
        let mut trusted = vec![self.signer.clone()];
        trusted.extend(self.successor.iter().map(|(certificate, _)| certificate.clone()));
        for old in split(&self.trusted) {
            if !trusted.contains(&old) && expiry(&old)? > now {
                trusted.push(old);
            }
        }
        Ok(trusted.concat())
    }

    /// As the data of a Secret.
    #[must_use]
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

    /// From the data of a Secret.
    pub fn from_data(data: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let get = |name: &str| data.get(name).cloned().with_context(|| format!("the Secret has no {name}"));
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

fn split(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    pem.split_inclusive(END).filter(|part| part.ends_with(END)).map(str::to_owned).collect()
}

fn expiry(pem: &str) -> anyhow::Result<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).context("no certificate in PEM")?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).context("no X.509 certificate")?;
    Ok(Timestamp::from_second(certificate.validity().not_after.timestamp())?)
}

fn valid(params: &mut CertificateParams, now: Timestamp, days: i32) -> anyhow::Result<()> {
    // An hour back: clocks of other machines may be slow.
    let at = |instant: Timestamp| std::time::SystemTime::from(instant);
    params.not_before = at(now - SignedDuration::from_hours(1)).into();
    params.not_after = at(now + DAY * days).into();
    Ok(())
}

fn authority(now: Timestamp) -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("sluice {}", now.strftime("%Y-%m-%dT%H:%M:%SZ")));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, now, AUTHORITY_DAYS)?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn serving(
    signer: &str,
    signer_key: &str,
    names: &[String],
    now: Timestamp,
) -> anyhow::Result<(String, String)> {
    ensure!(!names.is_empty(), "a certificate needs a name");
    let issuer = Issuer::from_ca_cert_pem(signer, KeyPair::from_pem(signer_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "sluice-operator");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    valid(&mut params, now, SERVING_DAYS)?;
    Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_in_time_and_an_authority_before_it_is_needed() {
        let names = ["sluice-control.sluice-system.svc".to_owned()];
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut bundle = Bundle::new(&names, start).unwrap();
        let first = bundle.signer.clone();
        let mut serving = 0;
        let mut overlap = 0;
        for day in 0..800 {
            let now = start + DAY * day;
            if let Some(next) = bundle.renewed(&names, now).unwrap() {
                if next.certificate != bundle.certificate {
                    serving += 1;
                    assert!(
                        split(&bundle.trusted).contains(&next.signer),
                        "a signer is trusted before it signs"
                    );
                }
                bundle = next;
            }
            assert!(expiry(&bundle.certificate).unwrap() > now + DAY * 9);
            assert!(split(&bundle.trusted).contains(&bundle.signer));
            let old = split(&bundle.trusted).contains(&first);
            overlap += i32::from(old && bundle.signer != first);
            assert!(split(&bundle.trusted).len() <= 3);
        }
        assert!((35..=42).contains(&serving), "{serving} renewals");
        assert!(overlap >= 2 * SERVING_DAYS, "{overlap} days of overlap");
        assert_eq!(Bundle::from_data(&bundle.to_data()).unwrap().to_data(), bundle.to_data());
    }

    #[test]
    fn a_damaged_secret_is_an_error_that_names_the_field() {
        let mut data = Bundle::new(&["a".into()], Timestamp::UNIX_EPOCH).unwrap().to_data();
        data.insert("tls.key".into(), "nonsense".into());
        assert!(format!("{:#}", Bundle::from_data(&data).err().unwrap()).contains("tls.key"));
        data.remove("ca.crt");
        assert!(format!("{:#}", Bundle::from_data(&data).err().unwrap()).contains("ca.crt"));
    }
}
