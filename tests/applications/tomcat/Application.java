import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import org.apache.catalina.startup.Tomcat;

/** The handlers that limits name, in Tomcat. Each answers with its name. Arguments: the port, a directory. */
public class Application {
  public static void main(String[] arguments) throws Exception {
    Tomcat tomcat = new Tomcat();
    tomcat.setBaseDir(arguments[1]);
    tomcat.setHostname("127.0.0.1");
    tomcat.setPort(Integer.parseInt(arguments[0]));
    // As lenient as Tomcat can be.
    tomcat.getConnector().setEncodedSolidusHandling("decode");
    tomcat.getConnector().setProperty("allowBackslash", "true");
    tomcat.getConnector().setProperty("relaxedPathChars", "[]|{}^\\`\"<>");
    var context = tomcat.addContext("", new File(arguments[1]).getAbsolutePath());
    String[][] handlers = {
      {"login", "/login"}, {"search", "/search/*"}, {"files", "/files/*"}, {"admin", "/admin/*"}, {"reset", "/Account/Reset"}
    };
    for (String[] handler : handlers) {
      Tomcat.addServlet(context, handler[0], new HttpServlet() {
        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) {
          String rest = request.getPathInfo();
          if (handler[0].equals("files") && (rest == null || rest.indexOf('/', 1) > 0)) {
            response.setStatus(404);
          } else {
            response.setHeader("x-handler", handler[0]);
          }
        }
      });
      context.addServletMappingDecoded(handler[1], handler[0]);
    }
    tomcat.start();
    tomcat.getServer().await();
  }
}
