// Package api has the requests and responses of the HTTP interface, a client for it, and the signatures of webhooks.
package api

import _ "embed"

//go:embed openapi.yaml
var openAPI string

// OpenAPI returns the description of the HTTP interface: OpenAPI 3.1 as YAML.
func OpenAPI() []byte { return []byte(openAPI) }
