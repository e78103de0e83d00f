#!/usr/bin/env python3
"""Makes spellings of signed tokens, and writes which JWT library accepts which to tokens.tsv.

The libraries are those of ../applications/tokens and of ../applications/tokens-*.
Each has a program `run`, which reads the tokens as JSON and prints the lines of the table.
"""

import base64
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
APPLICATIONS = HERE.parent / "applications"
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# The order of the group of P-256.
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def install(application):
    script = APPLICATIONS / "install.sh"
    return subprocess.run([script, application], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


sys.path.append(install("tokens"))

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def sign(key, text):
    """Returns the signature of a text as JWS has it."""
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def parts(algorithm, key):
    """Returns the parts of a token whose signature has both characters that base64url changes."""
    header = encode(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    # The length of the payload leaves unused bits in its last character.
    for number in range(10000, 100000):
        payload = encode(json.dumps({"sub": "user", "number": number, "x": ""}).encode())
        signature = encode(sign(key, f"{header}.{payload}"))
        if "-" in signature[1:-1] and "_" in signature[1:-1] and len(payload) % 4:
            return header, payload, signature
    raise AssertionError("no such signature")


def flipped(text, bits):
    """Changes bits of the last character."""
    return text[:-1] + ALPHABET[ALPHABET.index(text[-1]) ^ bits]


def spellings(algorithm, key):
    """Returns the spellings of one token by their names."""
    header, payload, signature = parts(algorithm, key)
    signed = f"{header}.{payload}."
    half = len(signature) // 2
    raw = decode(signature)
    # The last character of such a signature has four unused bits.
    found = {
        "unchanged": signed + signature,
        "signature, a used bit flipped": signed + flipped(signature, 16),
        "signature, the lowest unused bit flipped": signed + flipped(signature, 1),
        "signature, all unused bits flipped": signed + flipped(signature, 15),
        "signature, an unused bit flipped, with ==": signed + flipped(signature, 1) + "==",
        "signature with + and /": signed + signature.replace("-", "+").replace("_", "/"),
        "signature with + and / and ==": signed + signature.replace("-", "+").replace("_", "/") + "==",
        "signature with %2D and %5F": signed + signature.replace("-", "%2D").replace("_", "%5F"),
        "signature without its last character": signed + signature[:-1],
        "signature with a zero byte before it": signed + encode(b"\0" + raw),
        "signature with a zero byte after it": signed + encode(raw + b"\0"),
        "no signature": signed,
    }
    ends = ["==x", "==xx", "==AAAA", "==.", "A", "AA", "AAA", "AAAA", "%3D%3D", "#x", "?x", ";x"]
    for end in ends:
        found[f"signature, then {end}"] = signed + signature + end
    characters = ["!", ",", ".", " ", "\t", "\n", "\r", "\0", "*", "~", '"', "\u00a0", "\u2003", "\u00e9"]
    # Some decoders skip other characters, but count them for the padding.
    repeated = [character * count for character in ["!", " ", "\n"] for count in (2, 3, 4)]
    extra = [*characters, *repeated, "\r\n", "!==", " ==", "=", "==", "===", "===="]
    # A library decodes the signatures of both algorithms in the same way.
    for character in extra if algorithm == "ES256" else ["!!!!", "\n", "=", "=="]:
        shown = json.dumps(character)
        found[f"signature, {shown} before it"] = signed + character + signature
        found[f"signature, {shown} inside"] = signed + signature[:half] + character + signature[half:]
        found[f"signature, {shown} after it"] = signed + signature + character
    for character in ["=", "==", " ", "\n", "!"]:
        shown = json.dumps(character)
        found[f"header, {shown} after it"] = f"{header}{character}.{payload}.{signature}"
        found[f"header, {shown} before it"] = f"{character}{header}.{payload}.{signature}"
        found[f"payload, {shown} after it"] = f"{header}.{payload}{character}.{signature}"
        text = f"{header}{character}.{payload}"
        found[f"header, {shown} after it, signed"] = f"{text}.{encode(sign(key, text))}"
        text = f"{header}.{payload}{character}"
        found[f"payload, {shown} after it, signed"] = f"{text}.{encode(sign(key, text))}"
    found["payload, an unused bit flipped"] = f"{header}.{flipped(payload, 1)}.{signature}"
    found["a fourth part"] = f"{signed}{signature}.x"
    found["a fourth and a fifth part"] = f"{signed}{signature}.x.x"
    found["an empty part before"] = f".{signed}{signature}"
    if algorithm == "ES256":
        r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
        found["signature with the other s"] = signed + encode(raw[:32] + (ORDER - s).to_bytes(32, "big"))
        found["signature in DER"] = signed + encode(encode_dss_signature(r, s))
        found["signature with zero bytes before r and s"] = signed + encode(b"\0" + raw[:32] + b"\0" + raw[32:])
    return found


def main():
    keys = {
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    }
    pem = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    data = json.dumps(
        {
            "keys": {name: key.public_key().public_bytes(*pem).decode() for name, key in keys.items()},
            "tokens": [
                {"name": f"{algorithm}: {name}", "algorithm": algorithm, "token": token}
                for algorithm, key in keys.items()
                for name, token in spellings(algorithm, key).items()
            ],
        }
    )
    comments, lines = [], []
    for application in sorted(path.parent.name for path in APPLICATIONS.glob("tokens*/run")):
        installed = install(application)
        answer = subprocess.run(["./run"], cwd=installed, input=data, check=True, stdout=subprocess.PIPE, text=True)
        for line in answer.stdout.splitlines():
            (comments if line.startswith("#") else lines).append(line)
    (HERE / "tokens.tsv").write_text("\n".join(comments + lines) + "\n")


if __name__ == "__main__":
    main()
