"""Two handlers in Flask. Each answers with what it sees of the request."""

from flask import Flask, jsonify, request
from werkzeug.routing import Rule

app = Flask(__name__)
# A rule without methods takes every method.
app.url_map.add(Rule("/login", endpoint="login"))


def seen(name):
    answer = jsonify(
        handler=name,
        method=request.method,
        query=request.args.get("plan"),
        cookie=request.cookies.get("session"),
        key=request.headers.get("X-Api-Key"),
        plan=request.headers.get("X-Plan"),
    )
    answer.headers["x-handler"] = name
    return answer


@app.endpoint("login")
def login():
    return seen("login")


@app.errorhandler(404)
def other(_error):
    return seen("other")
