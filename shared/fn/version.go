package fn

// Release is the version of Sendonce, and the only place to change the version. A version that ends in
// -dev is not released yet. Tests require the same version in openapi.yaml, the production overlay and
// CHANGELOG.md.
const Release = "1.0.0-dev"

// commit is stamped by the linker: -ldflags "-X …/shared/fn.commit=d548f1a".
var commit string

// Version returns Release, with the commit that this binary was built from: 1.0.0-dev+d548f1a.
// Without a stamp, as after go build or go run, Version returns Release alone.
func Version() string {
	if commit == "" {
		return Release
	}
	return Release + "+" + commit
}
