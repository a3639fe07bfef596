package sender

// HTTPConfig configures the request to a provider and what its responses mean.
//
// URL, the values of Header, and Body are templates of package text/template with the fields of Message:
// {{.TaskID}}, {{.ClaimID}}, {{.PhoneNumber}}, {{.Content}}, {{.RetryCount}}. In the URL and in a form, the fields are
// percent-encoded. In a header, each character that is not printable becomes a space. In text/plain, the fields are
// unchanged. In JSON, the fields are escaped as parts of a string; write the quotes in the template:
//
//	{"to": "{{.PhoneNumber}}", "text": "{{.Content}}"}
type HTTPConfig struct {
	URL    string
	Method string            // "" = POST
	Header map[string]string // Content-Type decides how fields in Body are escaped; without Content-Type, Body is JSON
	Body   string

	// Outcomes maps a status ("404"), a class of statuses ("5xx"), or "unreachable" (no request could be sent) to an
	// outcome. An entry of a status takes precedence over the entry of its class. Without an entry, the outcome is
	//
	//	unreachable released: no retry is used while the provider is unavailable
	//	2xx         ok
	//	3xx         unknown; redirects are not followed
	//	401, 407    released: the credentials are wrong, not the message
	//	408         retryable
	//	429         released
	//	4xx         failed
	//	5xx         unknown; released for a 503 with Retry-After
	//
	// An entry of a class does not change these outcomes of single statuses (401, 407, 408, 429, 503 with Retry-After).
	Outcomes map[string]Outcome

	// OKField is the path of a field of the JSON response, such as "result.code" or "messages.0.status". It is read
	// only if the outcome of the status is OK. Then the outcome is OK if the field's value as text is OKValue. With
	// another value, the outcome is Failed and the value is the Code. Without the field, the outcome is Unknown.
	OKField, OKValue string
}
