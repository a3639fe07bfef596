package robot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/robot"
)

func TestText(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"type":"sendonce.alert.raised.v1","data":{"kind":"failure_rate","queue":"promo","value":0.255,"threshold":0.2,"since":"2026-01-02T11:04:05+08:00"}}`: "[Sendonce] Alert: many failures, queue promo\nValue 25.5%, threshold 20.0%, since 2026-01-02 03:04:05 UTC\n" +
			"[Sendonce] 告警：失败率过高，队列 promo\n当前值 25.5%，阈值 20.0%，开始于 2026-01-02 03:04:05 UTC",
		`{"type":"sendonce.webhook.disabled.v1","data":{"endpoint_id":"7","url":"https://a.test/secret","reason":"failing","failing_since":"2026-01-02T03:04:05Z"}}`: "[Sendonce] Webhook endpoint disabled: a.test\nReason: it kept failing, failing since 2026-01-02 03:04:05 UTC, id 7\n" +
			"[Sendonce] 回调端点已停用：a.test\n原因：持续失败，自 2026-01-02 03:04:05 UTC 起失败，ID 7",
	} {
		got, err := robot.Text(payload)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for payload, problem := range map[string]string{
		`{"type":"sendonce.task.failed.v1"}`:                `its type "sendonce.task.failed.v1" is neither an alert nor a disabled endpoint`,
		`{"type":"sendonce.alert.raised.v1","data":"text"}`: "cannot unmarshal",
		``: "unexpected end",
	} {
		_, err := robot.Text(payload)
		require.ErrorContains(t, err, problem)
	}
}
