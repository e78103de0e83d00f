"""Two handlers in Bottle. Each answers with what it sees of the request."""

import json
import sys

from bottle import Bottle, request, response

app = Bottle()


def seen(name):
    response.set_header("x-handler", name)
    response.content_type = "application/json"
    return json.dumps(
        {
            "handler": name,
            "method": request.method,
            "query": request.query.get("plan"),
            "cookie": request.get_cookie("session"),
            "key": request.get_header("X-Api-Key"),
            "plan": request.get_header("X-Plan"),
        }
    )


@app.route("/login", method="ANY")
def login():
    return seen("login")


@app.error(404)
def other(_error):
    response.status = 200
    return seen("other")


if __name__ == "__main__":
    app.run(server="cheroot", host="127.0.0.1", port=int(sys.argv[1]))
