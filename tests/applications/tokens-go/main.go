// Verifies tokens with the JWT libraries of Go.
// Input: {"keys": {algorithm: public key as PEM}, "tokens": [{"name", "algorithm", "token"}, ...]}.
// Output: a comment with versions, and lines with a library, the name of a token, and whether it was accepted.
package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
	"github.com/golang-jwt/jwt/v5"
	"github.com/lestrrat-go/jwx/v3/jwa"
	jwxjwt "github.com/lestrrat-go/jwx/v3/jwt"
)

// The data of the standard input.
type data struct {
	Keys   map[string]string
	Tokens []struct{ Name, Algorithm, Token string }
}

// A library and whether it accepts a token.
type library struct {
	name    string
	accepts func(token, algorithm string, key any) bool
}

func golangJWT(token, algorithm string, key any, options ...jwt.ParserOption) bool {
	options = append(options, jwt.WithValidMethods([]string{algorithm}))
	parsed, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return key, nil }, options...)
	if err != nil || !parsed.Valid {
		return false
	}
	subject, err := parsed.Claims.GetSubject()
	return err == nil && subject == "user"
}

var libraries = []library{
	{"golang-jwt", func(token, algorithm string, key any) bool {
		return golangJWT(token, algorithm, key)
	}},
	{"golang-jwt with strict decoding", func(token, algorithm string, key any) bool {
		return golangJWT(token, algorithm, key, jwt.WithStrictDecoding())
	}},
	{"golang-jwt with padding allowed", func(token, algorithm string, key any) bool {
		return golangJWT(token, algorithm, key, jwt.WithPaddingAllowed())
	}},
	{"go-jose", func(token, algorithm string, key any) bool {
		parsed, err := josejwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(algorithm)})
		if err != nil {
			return false
		}
		var claims josejwt.Claims
		return parsed.Claims(key, &claims) == nil && claims.Subject == "user"
	}},
	{"jwx", func(token, algorithm string, key any) bool {
		name, _ := jwa.LookupSignatureAlgorithm(algorithm)
		parsed, err := jwxjwt.Parse([]byte(token), jwxjwt.WithKey(name, key))
		if err != nil {
			return false
		}
		subject, _ := parsed.Subject()
		return subject == "user"
	}},
}

func versions() string {
	names := []string{"Go " + strings.TrimPrefix(runtime.Version(), "go")}
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		switch module.Path {
		case "github.com/golang-jwt/jwt/v5", "github.com/go-jose/go-jose/v4", "github.com/lestrrat-go/jwx/v3":
			names = append(names, module.Path+" "+strings.TrimPrefix(module.Version, "v"))
		}
	}
	return strings.Join(names, ", ")
}

func main() {
	var input data
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		log.Fatal(err)
	}
	keys := map[string]any{}
	for algorithm, text := range input.Keys {
		block, _ := pem.Decode([]byte(text))
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			log.Fatal(err)
		}
		keys[algorithm] = key
	}
	fmt.Println("#", versions())
	for _, library := range libraries {
		for _, token := range input.Tokens {
			accepted := library.accepts(token.Token, token.Algorithm, keys[token.Algorithm])
			fmt.Printf("%s\t%s\t%t\n", library.name, token.Name, accepted)
		}
	}
}
