// Package tools has checks of this repository. It is a module of its own, so that the module of Sendonce
// does not depend on its tools: kustomize, which the tests of deploy run, and kin-openapi.
package tools

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

func validate(ctx context.Context, text []byte) error {
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return err
	}
	return doc.Validate(ctx)
}

func TestContractIsValidOpenAPI(t *testing.T) {
	text, err := os.ReadFile("../../shared/api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t.Context(), text); err != nil {
		t.Fatal(err)
	}

	// In a flow mapping, YAML ends an unquoted text at a comma and parses the rest as a key.
	const quoted, unquoted = `'Who confirmed, in time order.'`, `Who confirmed, in time order.`
	if !bytes.Contains(text, []byte(quoted)) {
		t.Fatal("the contract has no " + quoted)
	}
	if err := validate(t.Context(), bytes.ReplaceAll(text, []byte(quoted), []byte(unquoted))); err == nil {
		t.Error("a description that is cut off at a comma is accepted")
	}
}
