package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/fn"
)

// pageVisitors is printed instead of the roles of a page: the page itself decides what a visitor sees.
const pageVisitors = "a page, for everybody"

// listRoutes prints the routes as a Markdown table, for the configuration of gateways. It needs no database.
func listRoutes(functions []fn.Function) func(context.Context, *fn.Env, []string) error {
	return func(_ context.Context, env *fn.Env, args []string) error {
		if len(args) > 0 {
			return errors.New("routes takes no arguments")
		}
		var table strings.Builder
		var failed []error
		for _, f := range functions {
			rolesOf, err := fn.Patterns(env, f)
			failed = append(failed, err)
			for _, pattern := range slices.Sorted(maps.Keys(rolesOf)) {
				var roles []string
				for _, role := range rolesOf[pattern] {
					roles = append(roles, string(role))
				}
				fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", f.Name, pattern, strings.Join(roles, ", "))
			}
			pages, err := fn.PagePatterns(env, f)
			failed = append(failed, err)
			for _, pattern := range pages {
				fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", f.Name, pattern, pageVisitors)
			}
		}
		if err := errors.Join(failed...); err != nil {
			return err
		}
		fmt.Print("| Function | Call | Roles |\n|---|---|---|\n", table.String())
		return nil
	}
}

// healthTimeout is shorter than the timeout of container engines for a health check.
const healthTimeout = 2 * time.Second

// checkHealth is the health check of a container: its image has no other program, such as curl. It does not
// check the database, because a restart of the container would not help.
func checkHealth(ctx context.Context, env *fn.Env, _ struct{}) error {
	host, port, err := net.SplitHostPort(env.Config.Address())
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("/healthz returned %s", res.Status)
	}
	return nil
}

// printPasswordHash reads a password, one line of standard input, and prints its hash. args may have the number of
// iterations.
func printPasswordHash(_ context.Context, _ *fn.Env, args []string) error {
	iterations := auth.HashIterations
	if len(args) > 0 {
		var err error
		if iterations, err = strconv.Atoi(args[0]); len(args) > 1 || err != nil || iterations < auth.MinHashIterations || iterations > auth.MaxHashIterations {
			return fmt.Errorf("hash-password takes the number of iterations, %d to %d, or nothing for %d", auth.MinHashIterations, auth.MaxHashIterations, auth.HashIterations)
		}
	}
	line, err := bufio.NewReader(io.LimitReader(os.Stdin, 2*auth.MaxPasswordLength)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	password := strings.TrimRight(line, "\r\n")
	if password == "" || len(password) > auth.MaxPasswordLength {
		return fmt.Errorf("give the password on standard input: one line of 1 to %d bytes", auth.MaxPasswordLength)
	}
	hash, err := auth.HashPassword(password, iterations)
	if err != nil {
		return err
	}
	fmt.Println(hash)
	return nil
}
