"""Two handlers in Django. Each answers with what it sees of the request."""

import sys

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path, re_path

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="unused",
)


def handler(name):
    def answer(request):
        seen = {
            "handler": name,
            "method": request.method,
            "query": request.GET.get("plan"),
            "cookie": request.COOKIES.get("session"),
            "key": request.headers.get("X-Api-Key"),
            "plan": request.headers.get("X-Plan"),
        }
        return JsonResponse(seen, headers={"x-handler": name})

    return answer


urlpatterns = [path("login", handler("login")), re_path("", handler("other"))]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
else:
    wsgi = get_wsgi_application()
    asgi = get_asgi_application()
