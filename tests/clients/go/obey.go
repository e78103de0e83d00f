// obey URL NUMBER: sends so many requests, and prints the status of each, or that the client gave up.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"driver/obey"
)

func main() {
	number, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	client := &obey.Client{}
	for range number {
		response, err := client.Get(context.Background(), os.Args[1])
		switch {
		case errors.Is(err, obey.ErrGaveUp):
			fmt.Println("gave up")
		case err != nil:
			panic(err)
		default:
			fmt.Println(response.StatusCode)
			response.Body.Close()
		}
	}
}
