"""Two handlers in Pyramid. Each answers with what it sees of the request."""

import sys
from wsgiref.simple_server import make_server

import waitress
from pyramid.config import Configurator
from pyramid.response import Response


def handler(name):
    def answer(request):
        seen = {
            "handler": name,
            "method": request.method,
            "query": request.params.get("plan"),
            "cookie": request.cookies.get("session"),
            "key": request.headers.get("X-Api-Key"),
            "plan": request.headers.get("X-Plan"),
        }
        return Response(json=seen, headers={"x-handler": name})

    return answer


with Configurator() as config:
    config.add_route("login", "/login")
    config.add_view(handler("login"), route_name="login")
    config.add_notfound_view(handler("other"))
    app = config.make_wsgi_app()

if __name__ == "__main__":
    port, server = int(sys.argv[1]), sys.argv[2]
    if server == "waitress":
        waitress.serve(app, host="127.0.0.1", port=port)
    else:
        make_server("127.0.0.1", port, app).serve_forever()
