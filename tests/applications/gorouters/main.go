// Answers with what a handler reads from a request, in several routers of Go. Arguments: the server, the port.
// Routers have their default settings.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"unicode/utf16"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"
	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"
)

// What a handler reads. What is absent is null.
type reading struct {
	Handler string  `json:"handler"`
	Method  string  `json:"method"`
	Query   *string `json:"query"`
	Cookie  *string `json:"cookie"`
	Key     *string `json:"key"`
	Plan    *string `json:"plan"`
}

// JSON in ASCII.
func (r reading) body() []byte {
	text, err := json.Marshal(r)
	if err != nil {
		log.Fatal(err)
	}
	var ascii []byte
	for _, char := range string(text) {
		if char < 0x7f {
			ascii = append(ascii, byte(char))
			continue
		}
		for _, unit := range utf16.Encode([]rune{char}) {
			ascii = fmt.Appendf(ascii, "\\u%04x", unit)
		}
	}
	return ascii
}

// The value, or nil if it is absent.
func present(value string, is bool) *string {
	if !is {
		return nil
	}
	return &value
}

func header(request *http.Request, name string) *string {
	return present(request.Header.Get(name), len(request.Header.Values(name)) > 0)
}

func serveGin(address string) error {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	handler := func(name string) gin.HandlerFunc {
		return func(c *gin.Context) {
			query, hasQuery := c.GetQuery("plan")
			cookie, err := c.Cookie("session")
			c.Header("x-handler", name)
			c.Data(http.StatusOK, "application/json", reading{
				name, c.Request.Method, present(query, hasQuery), present(cookie, err == nil),
				header(c.Request, "x-api-key"), header(c.Request, "x-plan"),
			}.body())
		}
	}
	router.Any("/login", handler("login"))
	router.NoRoute(handler("other"))
	return router.Run(address)
}

func serveChi(address string) error {
	router := chi.NewRouter()
	handler := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			cookie, err := r.Cookie("session")
			if err != nil {
				cookie = &http.Cookie{}
			}
			w.Header().Set("content-type", "application/json")
			w.Header().Set("x-handler", name)
			w.Write(reading{
				name, r.Method, present(query.Get("plan"), query.Has("plan")), present(cookie.Value, err == nil),
				header(r, "x-api-key"), header(r, "x-plan"),
			}.body())
		}
	}
	router.HandleFunc("/login", handler("login"))
	router.NotFound(handler("other"))
	router.MethodNotAllowed(handler("other"))
	return http.ListenAndServe(address, router)
}

func serveEcho(address string) error {
	app := echo.New()
	app.HideBanner, app.HidePort = true, true
	handler := func(name string) echo.HandlerFunc {
		return func(c echo.Context) error {
			query := c.QueryParams()
			cookie, err := c.Cookie("session")
			if err != nil {
				cookie = &http.Cookie{}
			}
			c.Response().Header().Set("x-handler", name)
			return c.Blob(http.StatusOK, "application/json", reading{
				name, c.Request().Method, present(c.QueryParam("plan"), query.Has("plan")),
				present(cookie.Value, err == nil), header(c.Request(), "x-api-key"), header(c.Request(), "x-plan"),
			}.body())
		}
	}
	app.Any("/login", handler("login"))
	app.RouteNotFound("/*", handler("other"))
	return app.Start(address)
}

func serveEcho5(address string) error {
	app := echo5.New()
	handler := func(name string) echo5.HandlerFunc {
		return func(c *echo5.Context) error {
			query := c.QueryParams()
			cookie, err := c.Cookie("session")
			if err != nil {
				cookie = &http.Cookie{}
			}
			c.Response().Header().Set("x-handler", name)
			return c.Blob(http.StatusOK, "application/json", reading{
				name, c.Request().Method, present(c.QueryParam("plan"), query.Has("plan")),
				present(cookie.Value, err == nil), header(c.Request(), "x-api-key"), header(c.Request(), "x-plan"),
			}.body())
		}
	}
	app.Any("/login", handler("login"))
	app.RouteNotFound("/*", handler("other"))
	return app.Start(address)
}

func serveFiber(address string) error {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	handler := func(name string) fiber.Handler {
		return func(c *fiber.Ctx) error {
			headers := &c.Request().Header
			c.Set("content-type", "application/json")
			c.Set("x-handler", name)
			return c.Send(reading{
				name, c.Method(), present(c.Query("plan"), c.Context().QueryArgs().Has("plan")),
				present(c.Cookies("session"), headers.Cookie("session") != nil),
				present(c.Get("x-api-key"), headers.Peek("x-api-key") != nil),
				present(c.Get("x-plan"), headers.Peek("x-plan") != nil),
			}.body())
		}
	}
	app.All("/login", handler("login"))
	app.Use(handler("other"))
	return app.Listen(address)
}

func main() {
	servers := map[string]func(string) error{
		"chi":   serveChi,
		"echo":  serveEcho,
		"echo5": serveEcho5,
		"fiber": serveFiber,
		"gin":   serveGin,
	}
	log.Fatal(servers[os.Args[1]]("127.0.0.1:" + os.Args[2]))
}
