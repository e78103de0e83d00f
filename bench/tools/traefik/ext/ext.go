// Package ext stands in for the module of this name, which Traefik has in its repository and not among its releases: extensions of its
// configuration, of which there are none.
package ext

// HTTP extends the configuration of HTTP.
type HTTP struct{}

// Router extends a router.
type Router struct{}
