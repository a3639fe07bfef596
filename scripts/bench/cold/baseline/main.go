// Command baseline is the smallest server with a database: it has only net/http and pgx, and
// each call needs a login and a query. Its starts are the baseline of the starts of functions.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
)

func main() {
	l, err := net.FileListener(os.NewFile(3, "passed listener"))
	if err == nil {
		err = http.Serve(l, http.HandlerFunc(serve))
	}
	fmt.Fprintln(os.Stderr, "baseline:", err)
	os.Exit(1)
}

func serve(w http.ResponseWriter, r *http.Request) {
	conn, err := pgx.Connect(r.Context(), os.Getenv("DATABASE_URL"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer conn.Close(r.Context())
	var one int
	if err := conn.QueryRow(r.Context(), "select 1").Scan(&one); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, one)
}
