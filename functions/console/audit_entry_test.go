package console

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSubjectPage(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"task.retry", "018c24d2", "/console/tasks/018c24d2"}, {"message.redrive", "018c24d2", "/console/messages/018c24d2"},
		{"subscribe.resend", "7", "/console/subscribe/7"}, {"bulk.stop", "bulk/018c", "/console/bulk/018c"}, {"template.update", "template/7", "/console/templates/7"},
		{"queue.pause", "queue/a b", "/console/tasks?queue=a%20b"}, {"blocked.add", "blocked_word/1", ""}, {"x", "..", ""},
	} {
		require.Equal(t, c[2], subjectPage(c[0], c[1]), c[0])
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	require.Empty(t, differences("en", nil, nil))
	require.Empty(t, differences("en", []byte(`"text"`), []byte(`[1]`)), "not objects")
	require.Equal(t, []difference{{"a", "1", "2"}, {"c", "", "true"}, {"d", "x, y", ""}},
		differences("en", []byte(`{"a":1,"b":null,"d":["x","y"],"e":{"f":1}}`), []byte(`{"a":2,"b":"","c":true,"d":[],"e":{"f":1}}`)))
	long := strings.Repeat("x", 600)
	require.Equal(t, []difference{{"content", "hidden, 601 characters", "hidden, 600 characters"}},
		differences("en", []byte(`{"content":"`+long+`y"}`), []byte(`{"content":"`+long+`"}`)))
	require.Equal(t, []difference{{"content", "hidden, 2 characters", "hidden, 2 characters"}}, differences("en", []byte(`{"content":"ab"}`), []byte(`{"content":"cd"}`)))
	require.Equal(t, []difference{{"phone_number", "", "138****8000"}}, differences("en", nil, []byte(`{"phone_number":"13800138000"}`)))
}
