// Answers with what a handler reads from a request, in HttpListener of Mono. Argument: the port.
using System;
using System.Linq;
using System.Net;
using System.Text;

static class Application
{
    static void Main(string[] arguments)
    {
        var listener = new HttpListener();
        // With another host, a request with any other Host would be refused.
        listener.Prefixes.Add("http://*:" + arguments[0] + "/");
        listener.Start();
        while (true)
        {
            var context = listener.GetContext();
            try
            {
                Answer(context.Request, context.Response);
            }
            catch (Exception error)
            {
                // A request that makes the handler throw has no answer. The server stays.
                Console.Error.WriteLine(error);
                context.Response.Abort();
            }
        }
    }

    static void Answer(HttpListenerRequest request, HttpListenerResponse response)
    {
        // Url.AbsolutePath is decoded twice.
        var name = request.RawUrl.Split('?')[0] == "/login" ? "login" : "other";
        var cookie = request.Cookies["session"];
        var fields = new[] {
            "\"handler\":" + Json(name),
            "\"method\":" + Json(request.HttpMethod),
            "\"query\":" + Json(request.QueryString.GetValues("plan")),
            "\"cookie\":" + Json(cookie == null ? null : cookie.Value),
            "\"key\":" + Json(request.Headers["X-Api-Key"]),
            "\"plan\":" + Json(request.Headers["X-Plan"]),
        };
        var body = Encoding.ASCII.GetBytes("{" + string.Join(",", fields) + "}");
        response.ContentType = "application/json";
        response.Headers["x-handler"] = name;
        response.ContentLength64 = body.Length;
        if (request.HttpMethod != "HEAD")
        {
            response.OutputStream.Write(body, 0, body.Length);
        }
        response.Close();
    }

    static string Json(string[] values)
    {
        if (values == null || values.Length == 1)
        {
            return Json(values == null ? null : values[0]);
        }
        return "[" + string.Join(",", values.Select(Json)) + "]";
    }

    // JSON in ASCII. What is absent is null.
    static string Json(string value)
    {
        if (value == null)
        {
            return "null";
        }
        var units = value.Select(c => c < 0x20 || c > 0x7e || c == '"' || c == '\\' ? string.Format("\\u{0:x4}", (int)c) : c.ToString());
        return "\"" + string.Concat(units) + "\"";
    }
}
