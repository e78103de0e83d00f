"""Verifies tokens with the JWT libraries of Python.

Input: {"keys": {algorithm: public key as PEM}, "tokens": [{"name", "algorithm", "token"}, ...]}.
Output: a comment with versions, and lines with a library, the name of a token, and whether it was accepted.
"""

import json
import sys
import warnings
from importlib.metadata import version

import jwt
from jose import jwt as jose
from joserfc import jwt as joserfc
from joserfc.jwk import ECKey, RSAKey

# The module of Authlib is deprecated, and says so.
with warnings.catch_warnings(record=True):
    from authlib.jose import JsonWebToken


def joserfc_key(key, algorithm):
    return (ECKey if algorithm == "ES256" else RSAKey).import_key(key)


LIBRARIES = {
    "pyjwt": lambda token, key, algorithm: jwt.decode(token, key, algorithms=[algorithm])["sub"],
    "python-jose": lambda token, key, algorithm: jose.decode(token, key, algorithms=[algorithm])["sub"],
    "authlib": lambda token, key, algorithm: JsonWebToken([algorithm]).decode(token, key)["sub"],
    "joserfc": lambda token, key, algorithm: joserfc.decode(
        token, joserfc_key(key, algorithm), algorithms=[algorithm]
    ).claims["sub"],
}


def accepted(verify, token, key, algorithm):
    try:
        return verify(token, key, algorithm) == "user"
    except Exception:
        return False


names = [*LIBRARIES, "cryptography"]
print("# " + ", ".join(f"{name} {version(name)}" for name in names))
data = json.load(sys.stdin)
for library, verify in LIBRARIES.items():
    for item in data["tokens"]:
        algorithm = item["algorithm"]
        result = accepted(verify, item["token"], data["keys"][algorithm], algorithm)
        print(library, item["name"], json.dumps(result), sep="\t")
