package task

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// filled returns a claimed task with a value in every field.
func filled(t *testing.T) (full Task) {
	t.Helper()
	v := reflect.ValueOf(&full).Elem()
	for _, f := range fields() {
		switch p := v.FieldByIndex(f.Index).Addr().Interface().(type) {
		case *time.Time:
			*p = early
		case **int64:
			*p = new(int64)
		case *ID:
			*p = NewID()
		default:
			switch v := reflect.ValueOf(p).Elem(); v.Kind() {
			case reflect.String:
				v.SetString("old " + f.Name)
			case reflect.Bool:
				v.SetBool(true)
			default:
				v.SetInt(1)
			}
		}
	}
	full.State, full.ExpiresAt, full.MaxRetries, full.Ended, full.Reason = Processing, late, 3, 99, 99
	for _, f := range fields() {
		require.False(t, v.FieldByIndex(f.Index).IsZero(), f.Name)
	}
	return full
}

func fields() []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(reflect.TypeFor[Task]()), func(f reflect.StructField) bool { return f.Anonymous })
}

// Each field of Task must be in always, or in keeps of each decision that does not change the field.
func TestDecisionsResetThePreviousAttempt(t *testing.T) {
	t.Parallel()
	const always = "ID Queue Priority MaxRetries OnUnknown ExpiresAt NotBefore CallerID Callback ClaimID AppID ClaimedBy MarksSending SendingAt "
	report := func(r Report) func(Task) Task {
		return func(before Task) Task {
			r.AppID, r.CallerID, r.ClaimID = before.AppID, *before.ClaimedBy, before.ClaimID
			after, verdict := before.Report(r, nil, now)
			require.Equal(t, Applied, verdict)
			return after
		}
	}
	due := func(before Task) Task {
		before.OnUnknown = Resend
		after, _ := before.SettleDue(nil, now)
		after.OnUnknown = Hold // the value from filled
		return after
	}
	manual := func(state State, how func(Task) (Task, error)) func(Task) Task {
		return func(before Task) Task {
			before.State = state
			after, err := how(before)
			require.NoError(t, err)
			return after
		}
	}
	resolve := func(how Resolution) func(Task) (Task, error) {
		return func(t Task) (Task, error) { return t.Resolve(how, "operator", now) }
	}
	for name, c := range map[string]struct {
		decide func(Task) Task
		keeps  string
	}{
		"success":            {report(Report{Outcome: SentOK}), "RetryCount"},
		"failure":            {report(Report{Outcome: SentFailed}), "RetryCount"},
		"retry":              {report(Report{Outcome: SentFailed, ShouldRetry: true}), ""},
		"released":           {report(Report{Outcome: Released}), "RetryCount"},
		"timeout":            {due, ""},
		"cancel":             {manual(Pending, func(t Task) (Task, error) { return t.Cancel(now) }), "RetryCount Ended"},
		"resolved as sent":   {manual(Held, resolve(ResolveSucceeded)), "RetryCount"},
		"resolved as failed": {manual(Held, resolve(ResolveFailed)), "RetryCount ErrorCode SentAt"},
		"manual retry":       {manual(Failed, func(t Task) (Task, error) { return t.Retry(now) }), "Ended Result ErrorCode SentAt"},
	} {
		before := filled(t)
		after := c.decide(before)
		var kept []string
		for _, f := range fields() {
			if f.Name != "State" && reflect.ValueOf(before).FieldByIndex(f.Index).Equal(reflect.ValueOf(after).FieldByIndex(f.Index)) {
				kept = append(kept, f.Name)
			}
		}
		require.ElementsMatch(t, strings.Fields(always+c.keeps), kept, name)
	}
}
