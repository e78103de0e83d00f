// Package obey has a client that obeys rate limits: it slows down before it is denied, and waits as long as it is told when
// it is.
package obey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrGaveUp means that a request was denied, and that the client stopped trying: no wait helps, the wait is too long, or all
// tries were denied.
var ErrGaveUp = errors.New("denied")

// A name in quotation marks, and its parameters: "per-client/1m";r=0;t=12
var item = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z]+=[^;,]+)*)`)

func items(headers http.Header, name string) map[string]map[string]string {
	found := map[string]map[string]string{}
	for _, match := range item.FindAllStringSubmatch(strings.Join(headers.Values(name), ", "), -1) {
		parameters := map[string]string{}
		for _, pair := range strings.Split(match[2], ";") {
			if key, value, ok := strings.Cut(pair, "="); ok {
				parameters[strings.TrimSpace(key)] = strings.TrimSpace(value)
			}
		}
		found[match[1]] = parameters
	}
	return found
}

// RetryAfter returns the time of Retry-After, which is a number of seconds or a date, and whether there is one.
func RetryAfter(headers http.Header, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(headers.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return max(0, date.Sub(now)), true
}

// Pause returns the time until the next request: when nothing remains, the time in which a limit admits one more.
func Pause(headers http.Header) time.Duration {
	rates := items(headers, "RateLimit-Policy")
	longest := time.Duration(0)
	for name, state := range items(headers, "RateLimit") {
		if state["r"] != "0" {
			continue
		}
		quota, _ := strconv.ParseInt(rates[name]["q"], 10, 64)
		window, _ := strconv.ParseInt(rates[name]["w"], 10, 64)
		reset, _ := strconv.ParseInt(state["t"], 10, 64)
		wait := time.Duration(reset) * time.Second
		if quota > 0 && window > 0 {
			wait = time.Duration(float64(window) / float64(quota) * float64(time.Second))
		}
		longest = max(longest, wait)
	}
	return longest
}

// Client sends requests, of which none precedes the time that the limits of an earlier one allow. Those of several goroutines
// are sent at once when that time comes, so some of them may be denied.
type Client struct {
	// HTTP sends the requests; http.DefaultClient if nil.
	HTTP *http.Client
	// Attempts is the number of tries for each request; 5 if zero.
	Attempts int
	// MaxWait is the longest wait before another try; five minutes if zero.
	MaxWait time.Duration

	mutex sync.Mutex
	next  time.Time
}

// Get returns the response to a GET request, whose body the caller closes.
func (c *Client) Get(ctx context.Context, url string) (*http.Response, error) {
	attempts, maxWait, client := c.Attempts, c.MaxWait, c.HTTP
	if maxWait == 0 {
		maxWait = 5 * time.Minute
	}
	if attempts == 0 {
		attempts = 5
	}
	if client == nil {
		client = http.DefaultClient
	}
	for range attempts {
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusTooManyRequests {
			c.notBefore(time.Now().Add(Pause(response.Header)))
			return response, nil
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		wait, ok := RetryAfter(response.Header, time.Now())
		if !ok {
			return nil, fmt.Errorf("%s: %w without Retry-After: no wait helps", url, ErrGaveUp)
		}
		if wait > maxWait {
			return nil, fmt.Errorf("%s: %w: Retry-After is %s, and the longest wait %s", url, ErrGaveUp, wait, maxWait)
		}
		c.notBefore(time.Now().Add(wait))
	}
	return nil, fmt.Errorf("%s: %w %d times", url, ErrGaveUp, attempts)
}

func (c *Client) notBefore(next time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if next.After(c.next) {
		c.next = next
	}
}

func (c *Client) wait(ctx context.Context) error {
	c.mutex.Lock()
	next := c.next
	c.mutex.Unlock()
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
