package console

import (
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithNoticeReplacesAnEarlierNotice(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"/console/held": "/console/held?done=resolve", "/console/held?done=retry&n=3&queue=a%26b": "/console/held?done=resolve&queue=a%26b", "/console/held?%zz": "/console/held?done=resolve",
	} {
		require.Equal(t, want, withNotice(to, "resolve", ""))
	}
	require.Equal(t, "/console/bulk?done=messages_redrive&n=3", withNotice("/console/bulk", "messages_redrive", "3"))
}

func TestEachTemplateParses(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(templateFiles, "templates/*.html")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		for language := range htmlLanguages {
			_, err := pageTemplate(language, strings.TrimSuffix(path.Base(file), ".html"))
			require.NoError(t, err)
		}
	}
}
