package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxParams is the highest number of template parameters in one request.
const maxParams = 100

// ParseParams reads template parameters from a text such as "code=123456&name=Ann", where + is a space and %XX a byte of
// UTF-8. Of pairs with the same name only the first counts. A pair with an empty value is ignored. The error is for an
// invalid % escape, invalid UTF-8, a NUL, or more than maxParams parameters.
func ParseParams(encoded string) (map[string]string, error) {
	params := make(map[string]string)
	for pair := range strings.SplitSeq(encoded, "&") {
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := decodeParam(rawName)
		if err != nil {
			return nil, err
		}
		value, err := decodeParam(rawValue)
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", name, err)
		}
		if _, repeated := params[name]; repeated || rawValue == "" {
			continue
		}
		if len(params) == maxParams {
			return nil, fmt.Errorf("more than %d parameters", maxParams)
		}
		params[name] = value
	}
	return params, nil
}

func decodeParam(raw string) (string, error) {
	text, err := url.QueryUnescape(raw)
	if err != nil {
		if escape, ok := errors.AsType[url.EscapeError](err); ok {
			return "", fmt.Errorf("malformed escape %q; for a percent sign write %%25", string(escape))
		}
		return "", err
	}
	return text, checkParam(text)
}

// checkParam refuses text that Postgres cannot store.
func checkParam(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("not valid UTF-8")
	}
	if strings.IndexByte(text, 0) >= 0 {
		return errors.New("contains a NUL character")
	}
	return nil
}

// ParamsFromJSON reads template parameters from a decoded JSON object: strings, numbers (a json.Number as it was written)
// and booleans, each of at most MaxEncoded characters. It returns either the parameters or every bad field, sorted by
// name.
func ParamsFromJSON(object map[string]any) (map[string]string, []Field) {
	if len(object) > maxParams {
		return nil, []Field{{Name: "params", Message: fmt.Sprintf("must have at most %d parameters", maxParams)}}
	}
	params := make(map[string]string, len(object))
	var bad []Field
	for _, name := range slices.Sorted(maps.Keys(object)) {
		value, err := scalarText(object[name])
		if err == nil {
			err = checkParam(name)
		}
		if err == nil && utf8.RuneCountInString(value) > MaxEncoded {
			err = fmt.Errorf("must be at most %d characters", MaxEncoded)
		}
		if err != nil {
			bad = append(bad, Field{Name: "params." + name, Message: err.Error()})
			continue
		}
		params[name] = value
	}
	if bad != nil {
		return nil, bad
	}
	return params, nil
}

func scalarText(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, checkParam(v)
	case json.Number:
		return v.String(), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", errors.New("must be a string, number or boolean")
}
