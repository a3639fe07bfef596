// Package decode reads requests from JSON bodies and query strings, strictly: it refuses
// unknown and repeated fields, wrong types, text that Postgres cannot store, and values that are
// nested too deep or have too many elements. One error names every bad field.
//
// It is not encoding/json, because that stops at the first error, accepts unknown names in
// any case and repeated fields, and replaces broken text without an error. Everything that
// this package accepts, encoding/json accepts with the same values (a fuzz test compares
// them), in about the same time.
package decode
