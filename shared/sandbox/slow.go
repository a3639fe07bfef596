//go:build slow

package sandbox

const slowTests = true
