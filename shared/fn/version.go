package fn

// Release is the version of Sendonce. A version that ends in -dev is not released yet. Tests require the
// same version in openapi.yaml, the production overlay and CHANGELOG.md.
const Release = "1.0.0-dev"

// commit is stamped by the linker: -ldflags "-X …/shared/fn.commit=d548f1a".
var commit string

// Version returns Release with the commit that this binary was built from: 1.0.0-dev+d548f1a.
// If commit is not set, as after a plain go build or go run, Version returns only Release.
func Version() string {
	if commit == "" {
		return Release
	}
	return Release + "+" + commit
}
