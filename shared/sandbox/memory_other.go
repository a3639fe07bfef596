//go:build !linux

package sandbox

// memory is a directory that is kept in memory; there is none.
func memory() string { return "" }
