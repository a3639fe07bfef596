package api

// Envelope is the form of every JSON response of the API.
type Envelope struct {
	Code    int     `json:"code"` // the HTTP status
	Message string  `json:"message"`
	Data    any     `json:"data,omitempty"`
	Error   string  `json:"error,omitempty"`  // the error code, a stable word; absent on success
	Fields  []Field `json:"fields,omitempty"` // every bad input field
}

// Field is one bad input field, with what is accepted.
type Field struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}
