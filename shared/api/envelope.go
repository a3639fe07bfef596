package api

// Envelope is the shape of every response with a body.
type Envelope struct {
	Code    int     `json:"code"` // the HTTP status
	Message string  `json:"message"`
	Data    any     `json:"data,omitempty"`
	Error   string  `json:"error,omitempty"`  // a stable word, on failures only
	Fields  []Field `json:"fields,omitempty"` // every offending input field
}

// Field is one bad input field, with what is accepted.
type Field struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}
