"""Verifies tokens with a version of PyJWT that is less strict. verify.py of ../tokens describes input and output."""

import json
import sys

import jwt


def accepted(token, key, algorithm):
    try:
        return jwt.decode(token, key, algorithms=[algorithm])["sub"] == "user"
    except Exception:
        return False


library = f"pyjwt {jwt.__version__}"
print(f"# {library}")
data = json.load(sys.stdin)
for item in data["tokens"]:
    algorithm = item["algorithm"]
    result = accepted(item["token"], data["keys"][algorithm], algorithm)
    print(library, item["name"], json.dumps(result), sep="\t")
