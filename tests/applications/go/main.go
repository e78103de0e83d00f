// The handlers that limits name, in Go's ServeMux. Each answers with its name. Argument: the port.
package main

import (
	"log"
	"net/http"
	"os"
)

func main() {
	mux := http.NewServeMux()
	for pattern, name := range map[string]string{
		"/login":         "login",
		"/search/":       "search",
		"/files/{name}":  "files",
		"/admin/":        "admin",
		"/Account/Reset": "reset",
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("x-handler", name)
		})
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], mux))
}
