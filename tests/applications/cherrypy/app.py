"""Two handlers in CherryPy. Each answers with what it sees of the request."""

import json
import sys

import cherrypy


def seen(name, plan):
    cookie = cherrypy.request.cookie.get("session")
    cherrypy.response.headers["x-handler"] = name
    cherrypy.response.headers["Content-Type"] = "application/json"
    answer = {
        "handler": name,
        "method": cherrypy.request.method,
        "query": plan,
        "cookie": cookie and cookie.value,
        "key": cherrypy.request.headers.get("X-Api-Key"),
        "plan": cherrypy.request.headers.get("X-Plan"),
    }
    return json.dumps(answer).encode()


class Root:
    @cherrypy.expose
    def login(self, plan=None, **_parameters):
        return seen("login", plan)

    @cherrypy.expose
    def default(self, *_path, plan=None, **_parameters):
        return seen("other", plan)


if __name__ == "__main__":
    cherrypy.config.update({"server.socket_host": "127.0.0.1", "server.socket_port": int(sys.argv[1])})
    cherrypy.quickstart(Root(), config={"global": {"engine.autoreload.on": False}})
