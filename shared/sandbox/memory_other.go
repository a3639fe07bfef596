//go:build !linux

package sandbox

// memoryDir returns "": there is no directory in memory that all these systems have.
func memoryDir() string { return "" }
