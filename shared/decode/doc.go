// Package decode reads requests from JSON bodies and query strings, strictly: it refuses
// unknown and repeated fields, wrong types, text that Postgres cannot store, and values that are
// nested too deep or have too many elements. One error names every bad field.
//
// encoding/json stops at the first error, accepts unknown and repeated fields and names in any
// case, and replaces invalid UTF-8 by U+FFFD without an error. What this package accepts,
// encoding/json accepts too, with the same values (a fuzz test compares them). Decoding takes
// about as long.
package decode
