// Answers with what a handler reads from a request, in Fiber 3 with its default settings. Argument: the port.
// Fiber 2 needs an older version of the HTTP server, so the other routers are in another module.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"unicode/utf16"

	"github.com/gofiber/fiber/v3"
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

func main() {
	app := fiber.New()
	handler := func(name string) fiber.Handler {
		return func(c fiber.Ctx) error {
			headers := &c.Request().Header
			c.Set("content-type", "application/json")
			c.Set("x-handler", name)
			return c.Send(reading{
				name, c.Method(), present(c.Query("plan"), c.RequestCtx().QueryArgs().Has("plan")),
				present(c.Cookies("session"), headers.Cookie("session") != nil),
				present(c.Get("x-api-key"), headers.Peek("x-api-key") != nil),
				present(c.Get("x-plan"), headers.Peek("x-plan") != nil),
			}.body())
		}
	}
	app.All("/login", handler("login"))
	app.Use(handler("other"))
	log.Fatal(app.Listen("127.0.0.1:"+os.Args[1], fiber.ListenConfig{DisableStartupMessage: true}))
}
