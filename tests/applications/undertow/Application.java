import io.undertow.Handlers;
import io.undertow.Undertow;
import io.undertow.server.HttpHandler;
import io.undertow.server.HttpServerExchange;
import io.undertow.server.handlers.Cookie;
import io.undertow.server.handlers.ForwardedHandler;
import io.undertow.server.handlers.ProxyPeerAddressHandler;
import io.undertow.util.Headers;
import io.undertow.util.HttpString;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Answers with what a handler reads from a request, in handlers of Undertow with its defaults.
 * Arguments: the port, and `plain` or `forwarded`: with its ProxyPeerAddressHandler and ForwardedHandler.
 */
public class Application {
  public static void main(String[] arguments) {
    HttpHandler root = Handlers.path(handler("other")).addExactPath("/login", handler("login"));
    if (arguments[1].equals("forwarded")) {
      root = new ProxyPeerAddressHandler(new ForwardedHandler(root));
    }
    Undertow.builder().addHttpListener(Integer.parseInt(arguments[0]), "127.0.0.1").setHandler(root).build().start();
  }

  static HttpHandler handler(String name) {
    return exchange -> {
      Deque<String> query = exchange.getQueryParameters().get("plan");
      List<String> sessions = new ArrayList<>();
      for (Cookie cookie : exchange.requestCookies()) {
        if (cookie.getName().equals("session")) {
          sessions.add(cookie.getValue());
        }
      }
      String[] fields = {
        "\"handler\":" + json(name),
        "\"method\":" + json(exchange.getRequestMethod().toString()),
        "\"query\":" + json(query == null ? List.of() : new ArrayList<>(query)),
        "\"cookie\":" + json(sessions),
        "\"key\":" + json(header(exchange, "X-Api-Key")),
        "\"plan\":" + json(header(exchange, "X-Plan")),
        "\"host\":" + json(exchange.getHostName()),
        "\"authorization\":" + json(header(exchange, "Authorization")),
      };
      exchange.getResponseHeaders().put(new HttpString("x-handler"), name);
      exchange.getResponseHeaders().put(Headers.CONTENT_TYPE, "application/json");
      exchange.getResponseSender().send("{" + String.join(",", fields) + "}");
    };
  }

  static String header(HttpServerExchange exchange, String name) {
    return exchange.getRequestHeaders().getFirst(name);
  }

  /** JSON in ASCII. No value is null, several are a list. */
  static String json(List<String> values) {
    if (values.size() > 1) {
      return values.stream().map(Application::json).collect(Collectors.joining(",", "[", "]"));
    }
    return json(values.isEmpty() ? null : values.get(0));
  }

  static String json(String value) {
    if (value == null) {
      return "null";
    }
    StringBuilder text = new StringBuilder("\"");
    for (char c : value.toCharArray()) {
      boolean escaped = c < 0x20 || c > 0x7e || c == '"' || c == '\\';
      text.append(escaped ? String.format("\\u%04x", (int) c) : String.valueOf(c));
    }
    return text.append('"').toString();
  }
}
