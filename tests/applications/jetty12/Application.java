import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.ForwardedRequestCustomizer;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Answers with what a handler reads from a request, in servlets of Jetty 12 with its defaults.
 * Arguments: the port, and `plain` or `forwarded`: with its ForwardedRequestCustomizer.
 */
public class Application {
  public static void main(String[] arguments) throws Exception {
    HttpConfiguration configuration = new HttpConfiguration();
    if (arguments[1].equals("forwarded")) {
      configuration.addCustomizer(new ForwardedRequestCustomizer());
    }
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server, new HttpConnectionFactory(configuration));
    connector.setHost("127.0.0.1");
    connector.setPort(Integer.parseInt(arguments[0]));
    server.addConnector(connector);
    ServletContextHandler context = new ServletContextHandler();
    context.setContextPath("/");
    context.addServlet(new ServletHolder(handler("login")), "/login");
    context.addServlet(new ServletHolder(handler("other")), "/");
    server.setHandler(context);
    server.start();
  }

  static HttpServlet handler(String name) {
    return new HttpServlet() {
      @Override
      protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
        String[] query = request.getParameterValues("plan");
        Cookie[] cookies = request.getCookies();
        List<String> sessions = Arrays.stream(cookies == null ? new Cookie[0] : cookies)
            .filter(cookie -> cookie.getName().equals("session"))
            .map(Cookie::getValue)
            .collect(Collectors.toList());
        String[] fields = {
          "\"handler\":" + json(name),
          "\"method\":" + json(request.getMethod()),
          "\"query\":" + json(query == null ? List.of() : Arrays.asList(query)),
          "\"cookie\":" + json(sessions),
          "\"key\":" + json(request.getHeader("X-Api-Key")),
          "\"plan\":" + json(request.getHeader("X-Plan")),
          "\"host\":" + json(request.getServerName()),
          "\"authorization\":" + json(request.getHeader("Authorization")),
        };
        byte[] body = ("{" + String.join(",", fields) + "}").getBytes(StandardCharsets.US_ASCII);
        response.setHeader("x-handler", name);
        response.setContentType("application/json");
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
      }
    };
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
