package functions

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
)

func TestVersionIsTheSameInAllFiles(t *testing.T) {
	t.Parallel()
	heading := "## [" + fn.Release + "]"
	if strings.HasSuffix(fn.Release, "-dev") {
		heading = "## [Unreleased]"
	}
	for path, want := range map[string]string{
		"../shared/api/openapi.yaml":                               "\n  version: " + fn.Release + "\n",
		"../deploy/knative/overlays/production/kustomization.yaml": "newTag: v" + fn.Release + "}",
		"../CHANGELOG.md":                                          heading,
	} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), want, "%s does not name the version of shared/fn/version.go", path)
	}
}
