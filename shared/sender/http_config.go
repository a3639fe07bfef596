package sender

// HTTPConfig configures the request to a provider and what its responses mean.
//
// URL, the values of Header, and Body are templates of package text/template with the fields of Message:
// {{.TaskID}}, {{.ClaimID}}, {{.PhoneNumber}}, {{.Content}}, {{.RetryCount}}. The values are escaped: percent-encoded
// in the URL and in a form, and as part of a JSON string in a JSON body. The quotes belong in the template:
//
//	{"to": "{{.PhoneNumber}}", "text": "{{.Content}}"}
type HTTPConfig struct {
	URL    string
	Method string            // "" = POST
	Header map[string]string // Content-Type decides how Body is escaped; without it Body is JSON
	Body   string

	// Outcomes maps a status ("404"), a class of statuses ("5xx"), or "unreachable" (no request could be sent) to an
	// outcome. The entry of a status counts more than that of its class. Without an entry, the outcome is
	//
	//	unreachable released: no retry is used while the provider is unavailable
	//	2xx         ok
	//	3xx         unknown; redirects are not followed
	//	401, 407    released: the credentials are wrong, not the message
	//	408         retryable
	//	429         released
	//	4xx         failed
	//	5xx         unknown; released for a 503 with Retry-After
	Outcomes map[string]Outcome

	// OKField is the path of a field of the JSON response, such as "result.code" or "messages.0.status". If the outcome
	// of the status is not OK, the field does not count. Else the outcome is OK if the field's text is OKValue, and
	// Failed with any other value, which becomes Code. Without the field the outcome is Unknown.
	OKField, OKValue string
}
