package fn

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// listRoutes prints what a gateway has to know. It needs no database.
func listRoutes(functions []Function) func(context.Context, *Env, []string) error {
	return func(_ context.Context, env *Env, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("routes takes no arguments")
		}
		all, err := build(env, functions)
		if err != nil {
			return err
		}
		fmt.Print("| Function | Call | Roles |\n|---|---|---|\n")
		for _, f := range all {
			for _, pattern := range slices.Sorted(maps.Keys(f.routes)) {
				var roles []string
				for _, role := range f.routes[pattern].roles {
					roles = append(roles, string(role))
				}
				fmt.Printf("| `%s` | `%s` | %s |\n", f.name, pattern, strings.Join(roles, ", "))
			}
		}
		return nil
	}
}

// healthTimeout is less than what engines give a health check.
const healthTimeout = 2 * time.Second

// checkHealth is the health check of an image that holds no other program. It
// does not check the database: restarting this container would not bring that back.
func checkHealth(ctx context.Context, env *Env, _ struct{}) error {
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
		return fmt.Errorf("it answers %s", res.Status)
	}
	return nil
}
