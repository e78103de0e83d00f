import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.catalina.startup.Tomcat;
import org.apache.catalina.valves.RemoteIpValve;

/**
 * Answers with what a handler reads from a request, in servlets of Tomcat 10.1 with its defaults.
 * Arguments: the port, and `plain` or `forwarded`: with its RemoteIpValve.
 */
public class Application {
  public static void main(String[] arguments) throws Exception {
    File directory = new File("work").getAbsoluteFile();
    Tomcat tomcat = new Tomcat();
    tomcat.setBaseDir(directory.getPath());
    tomcat.setHostname("127.0.0.1");
    tomcat.setPort(Integer.parseInt(arguments[0]));
    tomcat.getConnector().setProperty("address", "127.0.0.1");
    if (arguments[1].equals("forwarded")) {
      RemoteIpValve valve = new RemoteIpValve();
      valve.setHostHeader("X-Forwarded-Host");
      tomcat.getEngine().getPipeline().addValve(valve);
    }
    var context = tomcat.addContext("", directory.getPath());
    String[][] handlers = {{"login", "/login"}, {"other", "/"}};
    for (String[] handler : handlers) {
      Tomcat.addServlet(context, handler[0], handler(handler[0]));
      context.addServletMappingDecoded(handler[1], handler[0]);
    }
    tomcat.start();
    tomcat.getServer().await();
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
