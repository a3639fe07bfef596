// Package decode reads requests from JSON bodies and query strings, strictly: it refuses
// unknown and repeated fields, wrong types, text that Postgres cannot store, and values that are
// nested too deep or have too many elements. One error names every bad field, up to 200.
//
// encoding/json stops at the first error, accepts unknown and repeated fields and names in any
// case, and replaces invalid UTF-8 by U+FFFD without an error. encoding/json accepts every input that
// this package accepts and takes about as long. A fuzz test requires the same values of both packages.
// Two values differ: null leaves a json.RawMessage empty here, and NUL in a field with the tag
// text:"any" becomes U+FFFD.
package decode
