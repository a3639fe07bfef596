package fn

import (
	"os"
	"strings"
	"testing"

	"github.com/sendonce/sendonce/shared/config"
)

// FuzzSettings checks that no value of a setting makes the start panic, and that the error about a
// bad value never contains a secret.
func FuzzSettings(f *testing.F) {
	all := Settings(nil, nil)
	values := []string{"0", "-1", "true", "5s", "wechat=5s,30s;*=1m", "10.0.0.0/8,fd00::/8", "postgres://u:hunter2@h:x/db", "99999999999999999999", "a=b=c"}
	for i := range all {
		f.Add(uint8(i), values[i%len(values)])
	}
	f.Fuzz(func(t *testing.T, n uint8, value string) {
		s := all[int(n)%len(all)]
		if os.Setenv(s.Name, value) != nil {
			return // no variable can have this value
		}
		defer os.Unsetenv(s.Name)
		cfg, problems := configFromEnvironment(nil, nil)
		message := config.Error(problems).Error()
		env, err := NewEnv(cfg, nil)
		if err == nil {
			env.Close()
		} else {
			message += err.Error()
		}
		message = strings.ReplaceAll(message, "postgres://host:5432/name", "") // an example in the message
		if s.Secret && len(value) > 6 && strings.Contains(message, value) {
			t.Fatalf("%s shows its value: %s", s.Name, message)
		}
	})
}
