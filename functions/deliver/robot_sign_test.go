package deliver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The expected signatures were computed in Python by the rules in the manuals of DingTalk and Feishu.
func TestRobotSignatures(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1700000000123)
	const signed = "sign=%2BA7FyZDwKMJL6%2BxcC0XKnPytmd8Cq8p1LRafuGNERPw%3D&timestamp=1700000000123"
	for from, want := range map[string]string{
		"https://oapi.dingtalk.com/robot/send?access_token=a%20b": "https://oapi.dingtalk.com/robot/send?access_token=a%20b&" + signed,
		"https://robot.test":  "https://robot.test?" + signed,
		"https://robot.test?": "https://robot.test?" + signed,
	} {
		to, err := signDingTalk("SEC000000this0is0the0secret0of0a0test", at, from, nil)
		require.NoError(t, err)
		require.Equal(t, want, to)
	}

	body := feishuText("x")
	to, err := signFeishu("feishu0secret0of0test", at, "https://open.feishu.cn/open-apis/bot/v2/hook/1", body)
	require.NoError(t, err)
	require.Equal(t, "https://open.feishu.cn/open-apis/bot/v2/hook/1", to)
	require.Equal(t, map[string]any{
		"msg_type": "text", "content": map[string]string{"text": "x"}, "timestamp": "1700000000", "sign": "rbxAYraz8/FvaZtD8uQE1+mXuu6J4Qsjgf2TP7+alAI=",
	}, body)
}
