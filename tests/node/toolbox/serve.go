package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// echo is the body of a response in JSON, for requests with "Accept: application/json" or "?json".
type echo struct {
	Pod       string      `json:"pod"`
	Proto     string      `json:"proto"`
	Method    string      `json:"method"`
	Host      string      `json:"host"`
	Path      string      `json:"path"`
	Query     string      `json:"query"`
	Remote    string      `json:"remote"`
	Headers   http.Header `json:"headers"`
	BodyBytes int64       `json:"bodyBytes"`
}

// serve responds to every path with the pod's name and the request, over HTTP/1.1 and cleartext HTTP/2.
//
// Query: delay=100ms waits before the response, status=503 sets the status, bytes=1000 sends that many bytes.
// /count returns the number of requests so far. /readyz and /livez are for probes. None of the three is counted.
// Environment: LISTEN (an address) or PORT, default 8080. DRAIN (default 3s) is how long the server goes on, not
// ready, after SIGTERM, while its endpoint is withdrawn; with "none" the process exits at once, in the middle of any
// requests. After REQUESTS (default 0: never) counted requests the server finishes those in flight and ends.
func serve() error {
	pod, err := os.Hostname()
	if err != nil {
		return err
	}
	var drain time.Duration
	exitAtOnce := env("DRAIN", "3s") == "none"
	if !exitAtOnce {
		if drain, err = time.ParseDuration(env("DRAIN", "3s")); err != nil {
			return fmt.Errorf("DRAIN: %w", err)
		}
	}
	last, err := strconv.ParseInt(env("REQUESTS", "0"), 10, 64)
	if err != nil {
		return fmt.Errorf("REQUESTS: %w", err)
	}
	var served atomic.Int64
	var draining atomic.Bool

	completed := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if draining.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, served.Load()) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n := served.Add(1)
		answer(w, r, pod)
		if n == last {
			close(completed)
		}
	})

	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Addr: env("LISTEN", ":"+env("PORT", "8080")), Handler: mux, Protocols: protocols}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	stopped := make(chan error, 1)
	go func() {
		select {
		case <-completed:
		case <-stop.Done():
			if exitAtOnce {
				os.Exit(0)
			}
			draining.Store(true)
			time.Sleep(drain)
		}
		limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(limit)
	}()
	fmt.Println("listening on", server.Addr, "as", pod)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return <-stopped
}

func answer(w http.ResponseWriter, r *http.Request, pod string) {
	query := r.URL.Query()
	bodyBytes, _ := io.Copy(io.Discard, r.Body)
	if d, err := time.ParseDuration(query.Get("delay")); err == nil {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			return
		}
	}
	status := http.StatusOK
	if s, err := strconv.Atoi(query.Get("status")); err == nil && s >= 200 && s <= 599 {
		status = s
	}
	w.Header().Set("X-Pod", pod)
	if n, err := strconv.Atoi(query.Get("bytes")); err == nil && n >= 0 {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(n))
		w.WriteHeader(status)
		chunk := []byte(strings.Repeat("x", 32<<10))
		for ; n > 0; n -= min(n, len(chunk)) {
			if _, err := w.Write(chunk[:min(n, len(chunk))]); err != nil {
				return
			}
		}
		return
	}
	if query.Has("json") || strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(echo{pod, r.Proto, r.Method, r.Host, r.URL.Path, r.URL.RawQuery, r.RemoteAddr, r.Header, bodyBytes})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, "hello from %s: %s %s\n", pod, r.Method, r.URL.Path)
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}
