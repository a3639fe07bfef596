package config

import (
	"os"
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

// fileSuffix ends the name of the variable that has the path of the file with a secret.
const fileSuffix = "_FILE"

// secretFrom reads a secret from the variable name or, without the line breaks at its end, from the file whose path
// is in the variable name_FILE. (Container engines mount secrets as files.) The secret is empty if both variables
// are empty or not set.
func secretFrom(name string) (string, *task.Field) {
	value, path := os.Getenv(name), os.Getenv(name+fileSuffix)
	switch {
	case path == "":
		return value, nil
	case value != "":
		return "", &task.Field{Name: name + fileSuffix, Message: "and " + name + " are both set; keep one of them"}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", &task.Field{Name: name + fileSuffix, Message: "must name a file that can be read: " + err.Error()}
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}
