package fn

import (
	"os"
	"strings"
)

// fileSuffix ends the name of the variable that gives the file of a secret.
const fileSuffix = "_FILE"

// secretFrom reads a secret from the variable name, or from the file that
// name_FILE gives, as container engines mount them: a line end after it is not
// part of it. Neither being set is the empty secret.
func secretFrom(name string) (string, *problem) {
	value, path := os.Getenv(name), os.Getenv(name+fileSuffix)
	switch {
	case path == "":
		return value, nil
	case value != "":
		return "", &problem{name + fileSuffix, "and " + name + " are both set; keep one of them"}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", &problem{name + fileSuffix, "must name a file that can be read: " + err.Error()}
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}
