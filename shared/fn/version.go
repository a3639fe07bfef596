package fn

import "runtime/debug"

// version is stamped by the linker: -ldflags "-X …/shared/fn.version=v1.2.3".
var version string

// Version is what this binary was built as; without a stamp, what Go knows of it.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
