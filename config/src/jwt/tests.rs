use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue, Method, Uri};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::keys::{CompiledJwt, Verification, VerificationKeys};
use super::{TokenRefusal, *};
use crate::request::RequestAttributes;

const NOW: u64 = 1_800_000_000;

/// A key that exists for these tests only.
static RSA: LazyLock<EncodingKey> =
    LazyLock::new(|| EncodingKey::from_rsa_der(include_bytes!("tests/rsa.der")));

/// An issuer's key.
struct Signer {
    key: EncodingKey,
    algorithm: Algorithm,
    jwk: Value,
}

impl Signer {
    fn new(id: &str, algorithm: Algorithm) -> Self {
        let pair = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_der();
        if algorithm == Algorithm::EdDSA {
            use base64::Engine as _;
            let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
            let x = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(pair.public_key_raw());
            let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": id});
            return Self { key: EncodingKey::from_ed_der(&pair.serialize_der()), algorithm, jwk };
        }
        let key = match algorithm {
            Algorithm::ES256 => EncodingKey::from_ec_der(&pair(&rcgen::PKCS_ECDSA_P256_SHA256)),
            Algorithm::ES384 => EncodingKey::from_ec_der(&pair(&rcgen::PKCS_ECDSA_P384_SHA384)),
            _ => RSA.clone(),
        };
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, algorithm).unwrap()).unwrap();
        jwk["kid"] = id.into();
        Self { key, algorithm, jwk }
    }

    fn sign(&self, id: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: id.map(Into::into), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }
}

fn claims() -> Value {
    json!({"iss": "https://id.example", "aud": ["other", "shop"], "exp": NOW + 600, "sub": "alice", "tenant": 7})
}

fn with(field: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[field] = value;
    claims
}

/// Returns a verifier of tokens that these keys sign.
fn verifier(keys: &[&Value]) -> JwtVerifier {
    let jwks = read_jwks(json!({"keys": keys}).to_string().as_bytes()).unwrap();
    let (issuer, audiences) = ("https://id.example".into(), vec!["shop".into()]);
    let keys = VerificationKeys { issuer, audiences, jwks };
    let jwt = CompiledJwt { name: "main".into(), verification: Verification::Keys(keys) };
    JwtVerifier::new(&jwt, vec!["sub".into(), "tenant".into()]).unwrap()
}

fn headers(values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(http::header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn claim_at(verifier: &JwtVerifier, values: &[&str], claim: &str, now: u64) -> Option<String> {
    let (uri, headers) = (Uri::from_static("/"), headers(values));
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, IpAddr::V4(Ipv4Addr::LOCALHOST));
    verifier.read_claim(&request, claim, || now, str::to_owned).value()
}

/// Returns the subject of a token.
fn subject(verifier: &JwtVerifier, token: &str) -> Option<String> {
    claim_at(verifier, &[&format!("Bearer {token}")], "sub", NOW)
}

#[test]
fn a_token_of_each_algorithm_identifies_its_subject() {
    for algorithm in [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ] {
        let signer = Signer::new("a", algorithm);
        let verifier = verifier(&[&signer.jwk]);
        let token = signer.sign(Some("a"), &claims());
        assert_eq!(subject(&verifier, &token).as_deref(), Some("alice"), "{algorithm:?}");
        assert_eq!(subject(&verifier, &token).as_deref(), Some("alice"), "cached");
        assert_eq!(
            subject(&verifier, &signer.sign(None, &claims())).as_deref(),
            Some("alice"),
            "the only key"
        );
        let values = [&*format!("bEARER   {token}")];
        assert_eq!(claim_at(&verifier, &values, "tenant", NOW).as_deref(), Some("7"));
        assert_eq!(claim_at(&verifier, &values, "other", NOW), None, "a claim that no limit needs");
        // Another token of the same header and payload.
        let (start, signature) = token.rsplit_once('.').unwrap();
        let other = signature.replacen(|c: char| c.is_ascii_alphanumeric(), "-", 4);
        assert_eq!(subject(&verifier, &format!("{start}.{other}")), None, "{algorithm:?}");
    }
}

#[test]
fn a_token_that_proves_less_is_no_token() {
    let (signer, other) = (Signer::new("a", Algorithm::ES256), Signer::new("a", Algorithm::ES256));
    let second = Signer::new("b", Algorithm::ES256);
    let verifier = verifier(&[&signer.jwk, &second.jwk]);
    let sign = |claims: &Value| signer.sign(Some("a"), claims);
    let mut expected = [0; 5];
    for (token, what, refusal) in [
        (other.sign(Some("a"), &claims()), "another key of that name", Some(TokenRefusal::Signature)),
        (signer.sign(Some("b"), &claims()), "the name of another key", Some(TokenRefusal::Signature)),
        (signer.sign(Some("c"), &claims()), "an unknown name", Some(TokenRefusal::UnknownKey)),
        (other.sign(None, &claims()), "no name, and another key", Some(TokenRefusal::Signature)),
        (sign(&with("iss", json!("https://evil.example"))), "another issuer", Some(TokenRefusal::Claims)),
        (sign(&with("iss", Value::Null)), "no issuer", Some(TokenRefusal::Claims)),
        (sign(&with("iss", json!(["https://id.example"]))), "a list of issuers", Some(TokenRefusal::Claims)),
        (sign(&with("aud", json!("other"))), "another audience", Some(TokenRefusal::Claims)),
        (sign(&with("aud", Value::Null)), "no audience", Some(TokenRefusal::Claims)),
        (sign(&with("exp", json!(NOW - 61))), "expired", Some(TokenRefusal::Expired)),
        (sign(&with("exp", Value::Null)), "no end", Some(TokenRefusal::Claims)),
        (sign(&with("exp", json!("later"))), "an end that is no number", Some(TokenRefusal::Claims)),
        (sign(&with("nbf", json!(NOW + 61))), "not valid yet", Some(TokenRefusal::Expired)),
        (sign(&with("nbf", json!("now"))), "a beginning that is no number", Some(TokenRefusal::Claims)),
        (sign(&with("sub", json!(""))), "an empty subject", None),
        (sign(&with("sub", json!(["alice"]))), "a list", Some(TokenRefusal::Malformed)),
        (sign(&with("sub", json!("x".repeat(257)))), "a long subject", None),
        (sign(&with("sub", json!(1.5))), "a fraction", None),
        (format!("{}.x", sign(&claims())), "four parts", Some(TokenRefusal::Malformed)),
        (sign(&claims()).replace('.', ""), "one part", Some(TokenRefusal::Malformed)),
        (sign(&with("x", json!("x".repeat(64 << 10)))), "64 KiB", None),
        (String::new(), "nothing", None),
    ] {
        assert_eq!(subject(&verifier, &token), None, "{what}");
        // Repeated in a second, it is not counted again.
        assert_eq!(subject(&verifier, &token), None, "{what}");
        if let Some(refusal) = refusal {
            expected[refusal as usize] += 1;
        }
        assert_eq!(TokenRefusal::ALL.map(|reason| verifier.refusals().get(reason)), expected, "{what}");
    }
    assert_eq!(subject(&verifier, &sign(&with("exp", json!(NOW - 59)))).as_deref(), Some("alice"), "leeway");
    for signer in [&signer, &second] {
        assert_eq!(
            subject(&verifier, &signer.sign(None, &claims())).as_deref(),
            Some("alice"),
            "without a name"
        );
    }
    let token = sign(&claims());
    let bearer = format!("Bearer {token}");
    let forged = format!("Bearer {}", other.sign(Some("a"), &claims()));
    for values in [&[&*bearer, &*forged][..], &[&format!("{bearer}, {bearer}")], &[]] {
        assert_eq!(claim_at(&verifier, values, "sub", NOW), None, "{values:?}");
    }
    let spellings = [
        &token,
        &format!("Bearer\t{token}=="),
        &format!("{bearer} x"),
        &format!("Token {token}"),
        &format!("bearer  {token}"),
    ];
    for value in spellings {
        assert_eq!(claim_at(&verifier, &[value], "sub", NOW).as_deref(), Some("alice"), "{value}");
    }
}

#[test]
fn a_token_cannot_choose_how_it_is_verified() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let signer = Signer::new("a", Algorithm::RS256);
    let verifier = verifier(&[&signer.jwk]);
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let none = |alg: &str| format!("{}.{}.", part(&json!({"alg": alg, "kid": "a"})), part(&claims()));
    for alg in ["none", "None", "NONE", "", "HS256", "RS257"] {
        assert_eq!(subject(&verifier, &none(alg)), None, "{alg}");
    }
    // The public key as the secret of a symmetric signature.
    for secret in [signer.jwk["n"].as_str().unwrap().to_owned(), signer.jwk.to_string()] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header { kid: Some("a".into()), ..Header::new(algorithm) };
            let token = encode(&header, &claims(), &EncodingKey::from_secret(secret.as_bytes())).unwrap();
            assert_eq!(subject(&verifier, &token), None);
        }
    }
    // A key that the token brings with it, and an extension that is not understood.
    let own = Signer::new("a", Algorithm::ES256);
    let header = Header {
        kid: Some("a".into()),
        jwk: Some(serde_json::from_value(own.jwk.clone()).unwrap()),
        ..Header::new(Algorithm::ES256)
    };
    assert_eq!(subject(&verifier, &encode(&header, &claims(), &own.key).unwrap()), None);
    let token = signer.sign(Some("a"), &claims());
    let mut parts = token.split('.');
    let header = json!({"alg": "RS256", "kid": "a", "crit": ["x"], "x": 1});
    let token = format!("{}.{}.{}", part(&header), parts.nth(1).unwrap(), parts.next().unwrap());
    assert_eq!(subject(&verifier, &token), None);
    // A key for one algorithm verifies no other of its kind.
    let mut named = signer.jwk.clone();
    named["alg"] = "RS512".into();
    assert_eq!(subject(&super::tests::verifier(&[&named]), &signer.sign(Some("a"), &claims())), None);
}

#[test]
fn verified_tokens_are_kept_until_they_expire_and_never_more_than_a_bound() {
    let signer = Signer::new("a", Algorithm::EdDSA);
    let verifier = verifier(&[&signer.jwk]);
    let token =
        |n: u64| format!("Bearer {}", signer.sign(Some("a"), &with("sub", json!(format!("user-{n}")))));
    let first = token(0);
    let at = |now| claim_at(&verifier, &[&first], "sub", now);
    assert_eq!(at(NOW).as_deref(), Some("user-0"));
    assert_eq!(at(NOW + 659).as_deref(), Some("user-0"));
    assert_eq!(at(NOW + 660), None, "it has expired meanwhile");
    for n in 0..5_000 {
        let expected = format!("user-{n}");
        assert_eq!(claim_at(&verifier, &[&token(n)], "sub", NOW), Some(expected));
    }
    assert!(verifier.cached() <= 4_096 && verifier.cached() > 2_000, "{}", verifier.cached());
    assert_eq!(claim_at(&verifier, &["Bearer e30.e30.e30"], "sub", NOW), None);
    assert!(verifier.cached() <= 4_096);
}

#[test]
fn tokens_that_something_else_verified_are_read_as_they_are() {
    let jwt = CompiledJwt { name: "main".into(), verification: Verification::Trusted };
    let verifier = JwtVerifier::new(&jwt, vec!["sub".into()]).unwrap();
    assert_eq!(subject(&verifier, "e30.eyJzdWIiOiJib2IifQ.").as_deref(), Some("bob"));
    assert_eq!(subject(&verifier, "e30.eyJzdWIiOiJib2IifQ").as_deref(), Some("bob"));
    assert_eq!(subject(&verifier, "e30.e30."), None);
    assert_eq!(subject(&verifier, "x"), None);
}

#[test]
fn a_key_set_has_the_keys_that_can_verify_tokens() {
    let signer = Signer::new("a", Algorithm::ES256);
    let mut encryption = signer.jwk.clone();
    encryption["use"] = "enc".into();
    let secret = json!({"kty": "oct", "kid": "s", "k": "c2VjcmV0", "alg": "HS256"});
    let unknown = json!({"kty": "new", "kid": "n"});
    let set = json!({"keys": [secret, encryption, unknown, signer.jwk]});
    let read = read_jwks(set.to_string().as_bytes()).unwrap();
    assert_eq!(read_jwks(read.as_bytes()).unwrap(), read);
    let keys: Value = serde_json::from_str(&read).unwrap();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1);
    assert!(!read.contains("c2VjcmV0"), "a secret is not passed on");
    for (text, problem) in [
        ("{}", "is not a JSON Web Key Set"),
        ("hunter2", "is not a JSON Web Key Set, see line 1"),
        ("{\"keys\": []}", "has 0 public keys"),
        (&json!({"keys": [secret]}).to_string(), "has 0 public keys"),
        (&" ".repeat(70_000), "has more than 65536 bytes"),
    ] {
        let error = read_jwks(text.as_bytes()).unwrap_err();
        assert!(error.contains(problem) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_key_that_could_never_verify_anything_is_no_key() {
    let (rsa, ec) = (Signer::new("a", Algorithm::RS256).jwk, Signer::new("a", Algorithm::ES256).jwk);
    let ed = Signer::new("a", Algorithm::EdDSA).jwk;
    let is_key = |jwk: &Value| read_jwks(json!({"keys": [jwk]}).to_string().as_bytes()).is_ok();
    assert!(is_key(&rsa) && is_key(&ec) && is_key(&ed));
    let with = |jwk: &Value, member: &str, value: &str| {
        let mut jwk = jwk.clone();
        jwk[member] = value.into();
        jwk
    };
    let modulus = rsa["n"].as_str().unwrap();
    for (jwk, what) in [
        (with(&rsa, "n", &modulus[..modulus.len() / 2]), "1024 bits"),
        (with(&rsa, "n", &format!("AA{modulus}")), "a zero byte in front"),
        (with(&rsa, "e", "AQ"), "the exponent 1"),
        (with(&rsa, "e", "BA"), "an even exponent"),
        (with(&ec, "x", "AAAA"), "a short coordinate"),
        (with(&ed, "x", "AAAA"), "a short key"),
        (with(&ec, "kid", &"x".repeat(300)), "a long name"),
        (with(&ec, "alg", "ES384"), "an algorithm for another curve"),
    ] {
        assert!(!is_key(&jwk), "{what}");
    }
    // Certificates and the like are not passed on.
    let mut large = ec.clone();
    large["x5c"] = json!(["x".repeat(60_000)]);
    let read = read_jwks(json!({"keys": [large]}).to_string().as_bytes()).unwrap();
    assert!(read.len() < 300, "{read}");
}

#[test]
fn a_key_without_a_name_and_keys_of_one_name_verify_tokens() {
    let (first, second) = (Signer::new("same", Algorithm::ES256), Signer::new("same", Algorithm::ES256));
    let both = verifier(&[&first.jwk, &second.jwk]);
    for signer in [&first, &second] {
        assert_eq!(subject(&both, &signer.sign(Some("same"), &claims())).as_deref(), Some("alice"));
    }
    let mut unnamed = first.jwk.clone();
    unnamed.as_object_mut().unwrap().remove("kid");
    assert_eq!(
        subject(&verifier(&[&unnamed]), &first.sign(Some("any"), &claims())).as_deref(),
        Some("alice")
    );
}

/// Returns a spelling of a token by its name in the table of tokens; `None` for those that change what is signed, or that no header has.
fn spelled(name: &str, token: &str) -> Option<String> {
    let (signed, signature) = token.rsplit_once('.')?;
    let write = |signature: String| Some(format!("{signed}.{signature}"));
    let other = || signature.replace('-', "+").replace('_', "/");
    let flipped = |bits: usize| {
        let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let (start, last) = signature.split_at(signature.len() - 1);
        let value = digits.find(last)? ^ bits;
        Some(format!("{start}{}", &digits[value..=value]))
    };
    match name {
        "unchanged" => Some(token.to_owned()),
        "signature, the lowest unused bit flipped" => write(flipped(1)?),
        "signature, all unused bits flipped" => write(flipped(15)?),
        "signature, an unused bit flipped, with ==" => write(flipped(1)? + "=="),
        "signature with + and /" => write(other()),
        "signature with + and / and ==" => write(other() + "=="),
        _ => {
            if let Some(end) = name.strip_prefix("signature, then ") {
                return write(signature.to_owned() + end);
            }
            let (text, place) = name.strip_prefix("signature, ")?.rsplit_once("\" ")?;
            let text: String = serde_json::from_str(&format!("{text}\"")).ok()?;
            let half = signature.len() / 2;
            match place {
                _ if text.contains(['\n', '\r', '\0']) => None,
                "before it" => write(text + signature),
                "inside" => write(format!("{}{text}{}", &signature[..half], &signature[half..])),
                "after it" => write(signature.to_owned() + &text),
                _ => None,
            }
        }
    }
}

#[test]
fn a_spelling_of_a_token_that_some_library_accepts_is_the_token() {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/readings/tokens.tsv");
    let table = std::fs::read_to_string(table).expect("the table");
    let (ec, rsa) = (Signer::new("a", Algorithm::ES256), Signer::new("b", Algorithm::RS256));
    let verifier = verifier(&[&ec.jwk, &rsa.jwk]);
    let tokens = [("ES256", ec.sign(Some("a"), &claims())), ("RS256", rsa.sign(Some("b"), &claims()))];
    let mut tried = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let [_, name, "true"] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
        let (algorithm, name) = name.split_once(": ").unwrap();
        let (_, token) = tokens.iter().find(|(known, _)| *known == algorithm).unwrap();
        let Some(spelling) = spelled(name, token) else { continue };
        tried += 1;
        assert_eq!(subject(&verifier, &spelling).as_deref(), Some("alice"), "{line}");
    }
    assert!(tried > 150, "{tried} spellings");
}
