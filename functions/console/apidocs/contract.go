package apidocs

import (
	"encoding/json"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/api"
)

// contractJSON returns the contract, openapi.yaml, as JSON.
func contractJSON() ([]byte, error) {
	var contract any
	if err := yaml.Unmarshal(api.OpenAPI(), &contract); err != nil {
		return nil, err
	}
	return json.Marshal(contract)
}

// node is a value of the contract. The yaml of a missing value is nil.
type node struct {
	yaml *yaml.Node
	root *yaml.Node // of the contract
}

func parseContract() (node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(api.OpenAPI(), &document); err != nil {
		return node{}, err
	}
	root := document.Content[0]
	return node{root, root}, nil
}

func (n node) exists() bool { return n.yaml != nil }

// entry is a key of a mapping with its value.
type entry struct {
	key   string
	value node
}

// entries returns the entries of a mapping in the order of the file.
func (n node) entries() (all []entry) {
	if n.yaml == nil || n.yaml.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.yaml.Content); i += 2 {
		all = append(all, entry{n.yaml.Content[i].Value, node{n.yaml.Content[i+1], n.root}})
	}
	return all
}

// items returns the items of a list.
func (n node) items() (all []node) {
	if n.yaml == nil || n.yaml.Kind != yaml.SequenceNode {
		return nil
	}
	for _, item := range n.yaml.Content {
		all = append(all, node{item, n.root})
	}
	return all
}

// at returns the value under the keys.
func (n node) at(keys ...string) node {
	for _, key := range keys {
		entries := n.entries()
		i := slices.IndexFunc(entries, func(e entry) bool { return e.key == key })
		if i < 0 {
			return node{root: n.root}
		}
		n = entries[i].value
	}
	return n
}

// text returns the scalar under the keys, or "".
func (n node) text(keys ...string) string {
	if found := n.at(keys...); found.yaml != nil && found.yaml.Kind == yaml.ScalarNode {
		return found.yaml.Value
	}
	return ""
}

func (n node) texts(keys ...string) (all []string) {
	for _, item := range n.at(keys...).items() {
		all = append(all, item.text())
	}
	return all
}

// resolved returns the target of the node's $ref, or the node itself if it has no $ref.
func (n node) resolved() node {
	ref := n.text("$ref")
	if ref == "" {
		return n
	}
	return node{n.root, n.root}.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
}

// refName returns the last part of a $ref, or "".
func (n node) refName() string {
	ref := n.text("$ref")
	return ref[strings.LastIndex(ref, "/")+1:]
}

// json returns the value as indented JSON, with the keys in the order of the file.
func (n node) json() string {
	var b strings.Builder
	n.writeJSON(&b, "\n")
	return b.String()
}

// writeJSON writes the value. line is a line break and the indentation of the value.
func (n node) writeJSON(b *strings.Builder, line string) {
	inner := line + "  "
	switch {
	case n.yaml == nil:
		b.WriteString("null")
	case n.yaml.Kind == yaml.MappingNode:
		b.WriteString("{")
		for i, e := range n.entries() {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(inner + quote(e.key) + ": ")
			e.value.writeJSON(b, inner)
		}
		if len(n.yaml.Content) > 0 {
			b.WriteString(line)
		}
		b.WriteString("}")
	case n.yaml.Kind == yaml.SequenceNode:
		b.WriteString("[")
		for i, item := range n.items() {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(inner)
			item.writeJSON(b, inner)
		}
		if len(n.yaml.Content) > 0 {
			b.WriteString(line)
		}
		b.WriteString("]")
	case n.yaml.ShortTag() == "!!str" || n.yaml.ShortTag() == "!!timestamp":
		b.WriteString(quote(n.yaml.Value))
	default:
		b.WriteString(n.yaml.Value)
	}
}

func quote(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}
