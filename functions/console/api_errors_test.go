package console

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestErrorsOfTheAPIInChinese(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"must be at most 50 characters":                             "最多 50 个字符",
		"is required: it " + task.UserRule:                          "必填：必须是 1 到 50 个字符，只能使用 A-Z a-z 0-9 . _ -",
		"the task is processing; only a failed task can be retried": "任务的状态是：处理中；只有失败的任务可以重试",
		"queue orders is not paused":                                "队列 orders 没有暂停",
		"has 2 digits after 00; it must be 3":                       "在 00 之后有 2 位数字；必须是 3",
		"must be at most 100 queues; leave it empty for all":        "最多 100 个",
		"is missing: template %[2]s %d needs it":                    "缺少：模板 %[2]s %d 需要它", // the name of a template is not read as a verb
		"must be one or more of webhook.disabled, alert.raised and alert.cleared for the format slack, and no others": "Slack 机器人只能选择 webhook.disabled、alert.raised 和 alert.cleared，且至少选择一个",
		"the request has invalid fields: content must not be blank":                                                   "content 不能为空白",
		"an unknown message": "an unknown message", "": "",
	} {
		require.Equal(t, want, translateAPI("zh", message))
		require.Equal(t, message, translateAPI("en", message))
	}
}

// errorSources are the packages whose errors the console can show.
var errorSources = []string{
	"functions/admin", "functions/messages", "functions/submit", "functions/subscribe", "functions/webhooks", "shared/decode", "shared/task", "shared/store",
	"shared/store/admin", "shared/store/callers", "shared/store/messages", "shared/store/subscribe", "shared/store/tasks", "shared/store/webhooks",
}

// unseenFiles matches files whose errors no form, filter or button of the console can cause.
var unseenFiles = regexp.MustCompile(`functions/(messages/(accepted|confirm)|subscribe/(record|request))\.go$|store/messages/confirm\.go$|store/tasks/(claim|release_lost_claims)\.go$|task/(id|key|subscribe_data|alert|backoff)\.go$`)

// unseenErrors are errors in other files that no form, filter or button of the console can cause.
var unseenErrors = map[string]bool{
	"no such secret": true, "differs from the header Idempotency-Key; send one of them": true, "must be unknown": true,
	"must not be sent with a batch; give each item its own idempotency_key": true, "replaced by a newer submission": true,
	"the message has a newer send, task %s; retry that task": true, "has a number with more than %s characters, an exponent beyond ±%s, or a value beyond ±1.7e308": true,
}

func TestEveryErrorOfTheAPIHasATranslation(t *testing.T) {
	t.Parallel()
	s := sources{values: map[string]ast.Expr{}}
	for _, directory := range errorSources {
		s.read(t, directory)
	}
	s.read(t, "shared/message") // for its values
	found := s.errors()
	require.Greater(t, len(found), 120)
	for _, message := range found {
		sample := strings.ReplaceAll(message, "%s", "7")
		if !unseenErrors[message] && message != "no such %s" { // each text that begins with "no such" has its own translation
			assert.NotEqual(t, sample, translateAPI("zh", sample), "without a translation in api_errors.go")
		}
	}
	for message, translated := range apiErrors {
		assert.LessOrEqual(t, len(valueInError.FindAllString(translated, -1)), strings.Count(message, "%s"), "the translation has more values than the message: %s", message)
	}
}

// sources are parsed files of Go, and the initial values of their constants and variables.
type sources struct {
	files  []*ast.File
	values map[string]ast.Expr // by package.name
}

func (s *sources) read(t *testing.T, directory string) {
	paths, err := filepath.Glob("../../" + directory + "/*.go")
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || unseenFiles.MatchString(path) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		s.files = append(s.files, file)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				for i, name := range spec.Names {
					if i < len(spec.Values) {
						s.values[file.Name.Name+"."+name.Name] = spec.Values[i]
					}
				}
			}
			return true
		})
	}
}

// errorArguments has, for each function that makes an error, the index of the argument that is the message.
var errorArguments = map[string]int{"When": 2, "addf": 1, "Refuse": 1, "NotFound": 0, "note": 1, "failAt": 1}

// errors returns the texts of all errors, with %s for each value.
func (s *sources) errors() (found []string) {
	for _, file := range s.files {
		add := func(e ast.Expr, prefix string) {
			if text := prefix + s.text(e, file.Name.Name); strings.Trim(strings.ReplaceAll(text, "%s", ""), " ;:") != "" {
				found = append(found, text)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch node := n.(type) {
			case *ast.CallExpr:
				name := nameOf(node.Fun)
				if at, ok := errorArguments[name]; ok && at < len(node.Args) {
					prefix := ""
					if name == "NotFound" {
						prefix = "no such "
					}
					add(node.Args[at], prefix)
				}
			case *ast.KeyValueExpr:
				if nameOf(node.Key) == "Message" {
					add(node.Value, "")
				}
			}
			return true
		})
	}
	return found
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

var formatVerb = regexp.MustCompile(`%[.\d]*[a-z]`)

// text returns the value of an expression, with %s for each part that is not constant.
func (s *sources) text(e ast.Expr, pkg string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return formatVerb.ReplaceAllString(text, "%s")
		}
	case *ast.BinaryExpr:
		return s.text(e.X, pkg) + s.text(e.Y, pkg)
	case *ast.Ident:
		if value := s.values[pkg+"."+e.Name]; value != nil {
			return s.text(value, pkg)
		}
	case *ast.SelectorExpr:
		if value := s.values[nameOf(e.X)+"."+e.Sel.Name]; value != nil {
			return s.text(value, nameOf(e.X))
		}
	case *ast.CallExpr:
		if nameOf(e.Fun) == "Sprintf" {
			return s.text(e.Args[0], pkg)
		}
	}
	return "%s"
}
