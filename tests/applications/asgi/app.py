"""The handlers that limits name, in Starlette. Each answers with its name."""

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route


def handler(name):
    async def answer(_request):
        return Response(headers={"x-handler": name})

    return answer


def route(path, name):
    return Route(path, handler(name), methods=["GET", "POST"])


def tree(path, name):
    # Everything below the path, itself included.
    return Mount(path, app=lambda scope, receive, send: Response(headers={"x-handler": name})(scope, receive, send))


app = Starlette(
    routes=[
        route("/login", "login"),
        tree("/search", "search"),
        route("/files/{name}", "files"),
        tree("/admin", "admin"),
        route("/Account/Reset", "reset"),
    ]
)
