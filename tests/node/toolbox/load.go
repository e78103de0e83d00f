package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// result is the one line that load prints. Errors counts requests without a response. ByPod counts responses with
// the header X-Pod, so it leaves out those of a proxy in between.
type result struct {
	Status map[string]int `json:"status"`
	ByPod  map[string]int `json:"byPod"`
	Errors int            `json:"errors"`
}

// load sends exactly n requests without retries and counts the responses.
func load(args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	n := flags.Int64("n", 1, "requests to send in all")
	concurrency := flags.Int("c", 1, "requests in flight at once")
	keepalive := flags.Bool("keepalive", false, "reuse connections (a Service then sends them all to the same pod)")
	timeout := flags.Duration("timeout", 10*time.Second, "limit for one request")
	header := http.Header{}
	flags.Func("H", "`'name: value'` to send (repeatable)", func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if !ok {
			return errors.New("want 'name: value'")
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	_ = flags.Parse(args)
	if flags.NArg() != 1 || *n < 0 || *concurrency < 1 {
		return errors.New("usage: toolbox load -n N [-c CONCURRENCY] [-H 'k: v']... [-keepalive] [-timeout 10s] URL")
	}
	prototype, err := http.NewRequest(http.MethodGet, flags.Arg(0), nil)
	if err != nil {
		return err
	}
	prototype.Header = header
	if host := header.Get("Host"); host != "" {
		prototype.Host = host // net/http ignores a Host header
	}
	client := &http.Client{
		Timeout:       *timeout,
		Transport:     &http.Transport{DisableKeepAlives: !*keepalive, MaxIdleConnsPerHost: *concurrency},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}

	total := result{Status: map[string]int{}, ByPod: map[string]int{}}
	var mu sync.Mutex
	var taken atomic.Int64
	var workers sync.WaitGroup
	for range *concurrency {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for taken.Add(1) <= *n {
				status, pod, err := send(client, prototype)
				mu.Lock()
				if err != nil {
					total.Errors++
					if total.Errors == 1 {
						fmt.Fprintln(os.Stderr, "first error:", err)
					}
				} else {
					total.Status[strconv.Itoa(status)]++
					if pod != "" {
						total.ByPod[pod]++
					}
				}
				mu.Unlock()
			}
		}()
	}
	workers.Wait()
	return json.NewEncoder(os.Stdout).Encode(total)
}

// send returns an error unless the whole body of the response arrives.
func send(client *http.Client, prototype *http.Request) (status int, pod string, err error) {
	response, err := client.Do(prototype.Clone(prototype.Context()))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, "", err
	}
	return response.StatusCode, response.Header.Get("X-Pod"), nil
}
