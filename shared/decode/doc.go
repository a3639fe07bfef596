// Package decode reads requests from JSON bodies and query strings, strictly: it refuses
// unknown and repeated fields, wrong types, text that Postgres cannot store, and what is
// nested too deep or has too many elements, and it names every bad field in one response.
//
// It is not encoding/json, because that stops at the first error, accepts unknown names in
// any case and repeated fields, and replaces broken text without an error. Everything that
// this package accepts, encoding/json accepts with the same values (a fuzz test compares
// them), in about the same time.
package decode
