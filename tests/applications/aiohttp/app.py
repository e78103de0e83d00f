"""Two handlers in aiohttp. Each answers with what it sees of the request."""

import sys

from aiohttp import web


def handler(name):
    async def answer(request):
        seen = {
            "handler": name,
            "method": request.method,
            "query": request.query.get("plan"),
            "cookie": request.cookies.get("session"),
            "key": request.headers.get("X-Api-Key"),
            "plan": request.headers.get("X-Plan"),
        }
        return web.json_response(seen, headers={"x-handler": name})

    return answer


app = web.Application()
app.router.add_route("*", "/login", handler("login"))
app.router.add_route("*", "/{path:.*}", handler("other"))

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
