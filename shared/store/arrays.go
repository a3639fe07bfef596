package store

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sendonce/sendonce/shared/task"
)

// arrayCodec encodes array parameters, such as the columns of a BulkStatement, five times as fast as pgx. For each element,
// pgx looks up the encoding, and mostly allocates memory. pgx still does the scanning, and encodes the text format and Go
// types that no planner supports.
type arrayCodec struct {
	pgtype.ArrayCodec
	planners []arrayPlanner
}

// arrayPlanner returns the plan to encode value, or nil if it does not support the Go type of value.
type arrayPlanner func(oid uint32, value any) pgtype.EncodePlan

// PlanEncode implements pgtype.Codec.
func (c *arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		for _, planner := range c.planners {
			if plan := planner(c.ElementType.OID, value); plan != nil {
				return plan
			}
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// registerArrays registers an arrayCodec for each type of array that has planners. Integers must be as wide in Go as in
// Postgres; pgx encodes the others.
func registerArrays(m *pgtype.Map) {
	register := func(element, array uint32, planners ...arrayPlanner) {
		elementType, _ := m.TypeForOID(element)
		arrayType, _ := m.TypeForOID(array)
		codec := &arrayCodec{pgtype.ArrayCodec{ElementType: elementType}, planners}
		m.RegisterType(&pgtype.Type{Name: arrayType.Name, OID: array, Codec: codec})
	}
	texts := plannerOf(func(buf []byte, v string) []byte { return append(buf, v...) })
	register(pgtype.TextOID, pgtype.TextArrayOID, texts)
	register(pgtype.VarcharOID, pgtype.VarcharArrayOID, texts)
	register(pgtype.JSONOID, pgtype.JSONArrayOID, texts)
	register(pgtype.UUIDOID, pgtype.UUIDArrayOID,
		plannerOf(func(buf []byte, v task.ID) []byte { return append(buf, v[:]...) }),
		plannerOf(func(buf []byte, v task.Hash) []byte { return append(buf, v[:]...) }))
	register(pgtype.Int2OID, pgtype.Int2ArrayOID, plannerOf(func(buf []byte, v int16) []byte { return binary.BigEndian.AppendUint16(buf, uint16(v)) }))
	register(pgtype.Int4OID, pgtype.Int4ArrayOID, plannerOf(func(buf []byte, v int32) []byte { return binary.BigEndian.AppendUint32(buf, uint32(v)) }))
	register(pgtype.Int8OID, pgtype.Int8ArrayOID, plannerOf(func(buf []byte, v int64) []byte { return binary.BigEndian.AppendUint64(buf, uint64(v)) }))
	register(pgtype.BoolOID, pgtype.BoolArrayOID, plannerOf(func(buf []byte, v bool) []byte {
		if v {
			return append(buf, 1)
		}
		return append(buf, 0)
	}))
}

// plannerOf returns a planner for []T, and for []*T, whose nil elements are encoded as null.
func plannerOf[T any](appendValue func(buf []byte, v T) []byte) arrayPlanner {
	return func(oid uint32, value any) pgtype.EncodePlan {
		switch value.(type) {
		case []T:
			return arrayPlan[T]{oid, appendValue}
		case []*T:
			return nullablePlan[T]{oid, appendValue}
		}
		return nil
	}
}

// arrayPlan encodes a []T in Postgres' binary format of arrays. The header has the number of dimensions, whether there are
// nulls, the type of the elements, the number of elements, and the index of the first element. The elements follow, each
// after its length.
type arrayPlan[T any] struct {
	oid         uint32
	appendValue func(buf []byte, v T) []byte
}

// Encode implements pgtype.EncodePlan.
func (p arrayPlan[T]) Encode(value any, buf []byte) ([]byte, error) {
	values := value.([]T)
	buf = appendArrayHeader(buf, p.oid, len(values), false)
	for _, v := range values {
		buf = appendElement(buf, v, p.appendValue)
	}
	return buf, nil
}

// nullablePlan is arrayPlan for a []*T. A nil element is encoded as null.
type nullablePlan[T any] arrayPlan[T]

// Encode implements pgtype.EncodePlan.
func (p nullablePlan[T]) Encode(value any, buf []byte) ([]byte, error) {
	values := value.([]*T)
	nulls := false
	for _, v := range values {
		nulls = nulls || v == nil
	}
	buf = appendArrayHeader(buf, p.oid, len(values), nulls)
	for _, v := range values {
		if v == nil {
			buf = append(buf, 0xff, 0xff, 0xff, 0xff) // a length of -1
		} else {
			buf = appendElement(buf, *v, p.appendValue)
		}
	}
	return buf, nil
}

func appendArrayHeader(buf []byte, oid uint32, length int, nulls bool) []byte {
	const dimensions, firstIndex = 1, 1
	flags := uint32(0)
	if nulls {
		flags = 1
	}
	for _, n := range []uint32{dimensions, flags, oid, uint32(length), firstIndex} {
		buf = binary.BigEndian.AppendUint32(buf, n)
	}
	return buf
}

func appendElement[T any](buf []byte, v T, appendValue func([]byte, T) []byte) []byte {
	at := len(buf)
	buf = appendValue(append(buf, 0, 0, 0, 0), v)
	binary.BigEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	return buf
}
