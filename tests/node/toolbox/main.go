// toolbox runs in the test pods: an echo server, a load generator, and the few commands that images built FROM
// scratch lack. It uses only the standard library.
//
//	toolbox serve                                     echo server, see serve.go
//	toolbox get URL...                                print "STATUS BODY" of each
//	toolbox load -n N [-c CONCURRENCY] [-H 'k: v']... [-keepalive] URL
//	toolbox sleep [DURATION]                          without a duration until SIGTERM
//	toolbox cat FILE... | write FILE TEXT | id
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	command, args := "serve", []string{}
	if len(os.Args) > 1 {
		command, args = os.Args[1], os.Args[2:]
	}
	if err := run(command, args); err != nil {
		fmt.Fprintf(os.Stderr, "toolbox %s: %v\n", command, err)
		os.Exit(1)
	}
}

func run(command string, args []string) error {
	switch command {
	case "serve":
		return serve()
	case "get":
		return get(args)
	case "load":
		return load(args)
	case "sleep":
		return sleep(args)
	case "cat":
		return cat(args)
	case "write":
		if len(args) != 2 {
			return errors.New("usage: toolbox write FILE TEXT")
		}
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "id":
		return id()
	}
	return errors.New("unknown command: serve, get, load, sleep, cat, write or id")
}

// get fails only when no response arrives. A 429 is a response and is printed like any other.
func get(urls []string) error {
	client := &http.Client{Timeout: 10 * time.Second}
	for _, url := range urls {
		response, err := client.Get(url)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
		fmt.Println(response.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}

// sleep handles SIGTERM, because the kernel ignores unhandled signals for PID 1 of a container.
func sleep(args []string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	var end <-chan time.Time
	if len(args) > 0 {
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		end = time.After(d)
	}
	select {
	case <-end:
	case <-stop:
	}
	return nil
}

func cat(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// id prints the rights that the kernel enforces for this process, whatever the pod's spec requested.
func id() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		switch key, _, _ := strings.Cut(line, ":"); key {
		case "Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp":
			fmt.Print(line)
		}
	}
	return nil
}
