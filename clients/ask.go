// Package ask has a client that asks Sluice whether a customer may go on, reserves a cost in advance, and settles it in the end.
package ask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// ErrUnanswered means that Sluice cannot be reached, or cannot answer now.
var ErrUnanswered = errors.New("unanswered")

// Problem means that Sluice refused to answer, because the call is wrong. Field is the part of the body, or empty.
type Problem struct {
	Status        int
	Detail, Field string
}

func (p *Problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Field, p.Detail) }

// Answer is an answer of Sluice, or FailOpen.
type Answer struct {
	// Allowed is whether it allows to go on.
	Allowed bool
	// Answered is whether Sluice gave the answer. If not, Failure says why.
	Answered bool
	Failure  error
	// Remaining is what is left of the limit, and -1 if that is not known.
	Remaining int64
	// RetryAfter is the time after which the same call may be allowed, and zero without one.
	RetryAfter time.Duration
	// ID is that of the reservation. It is empty if nothing is reserved.
	ID string
}

// Asker asks a service. Goroutines may share it.
type Asker struct {
	// URL is that of the service, such as http://localhost:8080.
	URL string
	// TokenFile has the token of a service account, if the service requires one.
	TokenFile string
	// Timeout is the longest time that an answer takes; half a second if zero.
	Timeout time.Duration
	// FailClosed denies what Sluice does not answer. It is allowed otherwise.
	FailClosed bool
	// HTTP sends the requests; http.DefaultClient if nil, which keeps two connections open.
	HTTP *http.Client
}

type object map[string]any

// Default is the cost that the policy has: 1, and of a reservation what the policy reserves.
const Default = -1

// Allow charges the cost, or Default, if the limit has room for it. The error is a *Problem, or that of a context that is done.
func (a *Asker) Allow(ctx context.Context, policy, limit string, cost int64, key ...string) (Answer, error) {
	return a.check(ctx, charge(policy, limit, cost, key))
}

// Reserve charges the cost, or Default, in advance if the limit has room for it. It can be settled for the time of expiresAfter, in
// whole seconds; zero leaves that to Sluice.
func (a *Asker) Reserve(
	ctx context.Context, policy, limit string, cost int64, expiresAfter time.Duration, key ...string,
) (Answer, error) {
	reserve := object{}
	if expiresAfter != 0 {
		reserve["expiresAfterSeconds"] = (expiresAfter + time.Second - 1) / time.Second
	}
	body := charge(policy, limit, cost, key)
	body["reserve"] = reserve
	return a.check(ctx, body)
}

func charge(policy, limit string, cost int64, key []string) object {
	body := object{"policy": policy, "limit": limit, "key": key}
	if cost != Default {
		body["cost"] = cost
	}
	return body
}

// Settle charges the cost in place of what was reserved, and returns false if it was settled before or has expired. It gives up
// after four tries. Where the context may be done by now, pass one by context.WithoutCancel.
func (a *Asker) Settle(ctx context.Context, id string, cost uint64) (bool, error) {
	return a.settle(ctx, object{"id": id, "cost": cost})
}

// Release settles at what was reserved, and so ends one of the concurrent requests of a limit.
func (a *Asker) Release(ctx context.Context, id string) (bool, error) {
	return a.settle(ctx, object{"id": id})
}

func (a *Asker) settle(ctx context.Context, body object) (bool, error) {
	if body["id"] == "" {
		return false, nil
	}
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		var found struct{ Settled bool }
		err := a.post(ctx, "/v1/settle", body, &found)
		if !errors.Is(err, ErrUnanswered) || pause > 400*time.Millisecond {
			return found.Settled, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (a *Asker) check(ctx context.Context, body object) (Answer, error) {
	var found struct {
		Allowed     bool
		Limits      []struct{ Remaining, RetryAfterSeconds *int64 }
		Reservation struct{ ID string }
	}
	err := a.post(ctx, "/v1/check", body, &found)
	if errors.Is(err, ErrUnanswered) {
		return Answer{Allowed: !a.FailClosed, Failure: err, Remaining: -1}, nil
	}
	if err != nil {
		return Answer{}, err
	}
	answer := Answer{Allowed: found.Allowed, Answered: true, Remaining: -1, ID: found.Reservation.ID}
	for _, limit := range found.Limits {
		if limit.RetryAfterSeconds != nil {
			answer.RetryAfter = time.Duration(*limit.RetryAfterSeconds) * time.Second
		}
		if limit.Remaining != nil {
			answer.Remaining = *limit.Remaining
		}
	}
	return answer, nil
}

func (a *Asker) post(ctx context.Context, path string, body object, found any) error {
	timeout, client := a.Timeout, a.HTTP
	if timeout == 0 {
		timeout = 500 * time.Millisecond
	}
	if client == nil {
		client = http.DefaultClient
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	url := strings.TrimRight(a.URL, "/") + path
	request, err := http.NewRequestWithContext(limited, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	// It is not sent. With it, a request is sent again if the service has closed a connection that was kept.
	request.Header["Idempotency-Key"] = nil
	if a.TokenFile != "" {
		// Tokens are replaced before they expire, so the file is read each time.
		token, err := os.ReadFile(a.TokenFile)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	response, err := client.Do(request)
	if err == nil {
		text, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%s: %w: %w", url, ErrUnanswered, err)
	case response.StatusCode == http.StatusOK && json.Unmarshal(text, found) == nil:
		return nil
	}
	problem := &Problem{Detail: strings.ToValidUTF8(string(text[:min(len(text), 200)]), "")}
	_ = json.Unmarshal(text, problem)
	problem.Status = response.StatusCode
	if problem.Status == http.StatusOK || problem.Status >= 500 {
		return fmt.Errorf("%s: %w: %w", url, ErrUnanswered, problem)
	}
	return problem
}
