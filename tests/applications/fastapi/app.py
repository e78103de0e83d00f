"""Two handlers in FastAPI. Each answers with what it sees of the request."""

from typing import Annotated

from fastapi import Cookie, FastAPI, Header, Request
from fastapi.responses import JSONResponse

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"]
app = FastAPI()


def handler(name):
    def answer(
        request: Request,
        plan: str | None = None,
        session: Annotated[str | None, Cookie()] = None,
        x_api_key: Annotated[str | None, Header()] = None,
        x_plan: Annotated[str | None, Header()] = None,
    ):
        seen = {
            "handler": name,
            "method": request.method,
            "query": plan,
            "cookie": session,
            "key": x_api_key,
            "plan": x_plan,
        }
        return JSONResponse(seen, headers={"x-handler": name})

    return answer


app.api_route("/login", methods=METHODS)(handler("login"))
app.api_route("/{path:path}", methods=METHODS)(handler("other"))
