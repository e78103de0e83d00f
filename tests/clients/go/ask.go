// ask SERVICE NOBODY SILENCE: asks a service, an address without one, and one that takes requests and never answers. Prints
// the answers.
//
// drive SCRIPT: sends what scripted responses are for.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"driver/ask"
)

const policy = "shop/checkout"

var ctx = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func problem(err error) string {
	var found *ask.Problem
	if !errors.As(err, &found) {
		return "no problem"
	}
	field := found.Field
	if field == "" {
		field = "None"
	}
	return fmt.Sprintf("problem %d %s", found.Status, field)
}

// Reserves 16 times at once.
func reserve(asker *ask.Asker) (ids []string, without int) {
	answers := make([]ask.Answer, 16)
	var begin, end sync.WaitGroup
	begin.Add(1)
	for n := range answers {
		end.Add(1)
		go func() {
			defer end.Done()
			begin.Wait()
			answers[n] = must(asker.Reserve(ctx, policy, "tokens", 1000, 10*time.Minute, "go"))
		}()
	}
	begin.Done()
	end.Wait()
	for _, answer := range answers {
		if answer.Allowed {
			ids = append(ids, answer.ID)
		}
		if answer.ID == "" {
			without++
		}
	}
	return ids, without
}

func settle(asker *ask.Asker, ids []string, cost uint64) (settled int) {
	for _, id := range ids {
		if must(asker.Settle(ctx, id, cost)) {
			settled++
		}
	}
	return settled
}

func service(url string) {
	asker := &ask.Asker{URL: url, Timeout: time.Minute}
	for range 5 {
		answer := must(asker.Allow(ctx, policy, "per-customer", 1, "go"))
		fmt.Println("allow", answer.Allowed, answer.Answered, answer.Remaining)
	}
	answer := must(asker.Allow(ctx, policy, "per-customer", 1, "go"))
	fmt.Println("allow", answer.Allowed, answer.Answered, answer.Remaining, answer.RetryAfter > 0)

	ids, without := reserve(asker)
	different := map[string]bool{}
	for _, id := range ids {
		different[id] = true
	}
	fmt.Println("reserved", len(ids), "ids", len(different), "without", without)
	fmt.Println("settled", settle(asker, ids, 400))
	fmt.Println("settled again", settle(asker, ids, 9000))
	ids, _ = reserve(asker)
	fmt.Println("reserved", len(ids))

	reservation := must(asker.Reserve(ctx, policy, "tokens", 1000, 0, "other"))
	must(asker.Settle(ctx, reservation.ID, 420))
	fmt.Println("left", must(asker.Allow(ctx, policy, "tokens", 0, "other")).Remaining)

	must(asker.Reserve(ctx, policy, "tokens", ask.Default, 0, "third"))
	fmt.Println("default", must(asker.Allow(ctx, policy, "tokens", 0, "third")).Remaining)

	var jobs [3]ask.Answer
	for n := range jobs {
		jobs[n] = must(asker.Reserve(ctx, policy, "jobs", 1, 0, "go"))
	}
	fmt.Println("jobs", jobs[0].Allowed, jobs[1].Allowed, jobs[2].Allowed)
	fmt.Println("settled", must(asker.Release(ctx, jobs[0].ID)))
	fmt.Println("job", must(asker.Reserve(ctx, policy, "jobs", 1, 0, "go")).Allowed)

	_, err := asker.Allow(ctx, "shop/other", "per-customer", 1, "go")
	fmt.Println(problem(err))
	_, err = asker.Allow(ctx, policy, "per-customer", 1, "go", "more")
	fmt.Println(problem(err))
	_, err = asker.Settle(ctx, "none", 1)
	fmt.Println(problem(err))
}

func nobody(url string, timeout time.Duration) {
	for _, closed := range []bool{false, true} {
		asker := &ask.Asker{URL: url, Timeout: timeout, FailClosed: closed}
		answer := must(asker.Allow(ctx, policy, "per-customer", 1, "go"))
		fmt.Println("nobody", answer.Allowed, answer.Answered, answer.ID == "")
		answer = must(asker.Reserve(ctx, policy, "tokens", 1000, 0, "go"))
		fmt.Println("nobody", answer.Allowed, answer.Answered, answer.ID == "")
	}
}

func script(url string) {
	token := func(text string) { must(0, os.WriteFile("token", []byte(text+"\n"), 0o600)) }
	asker := &ask.Asker{URL: url + "/prefix/", TokenFile: "token", Timeout: time.Minute, FailClosed: true}
	token("one")
	fmt.Println("settled", must(asker.Settle(ctx, "some", 400)))
	token("two")
	fmt.Println("allow", must(asker.Allow(ctx, policy, "per-customer", 2, "go")).Allowed)
	fmt.Println("allow", must(asker.Allow(ctx, policy, "per-customer", ask.Default, "go")).Answered)
	_, err := asker.Reserve(ctx, policy, "tokens", 7, 599500*time.Millisecond, "go")
	fmt.Println(problem(err))
}

func main() {
	if len(os.Args) == 2 {
		script(os.Args[1])
		return
	}
	service(os.Args[1])
	nobody(os.Args[2], time.Minute)
	nobody(os.Args[3], 500*time.Millisecond)
}
