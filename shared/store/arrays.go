package store

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sendonce/sendonce/shared/task"
)

// arrayCodec encodes array parameters, such as the columns of a BulkStatement, five times as fast as pgx. For each element,
// pgx looks up the encoding, and mostly allocates memory. arrayCodec leaves to pgx: Go types that plan does not support,
// the text format, and scanning.
type arrayCodec struct {
	pgtype.ArrayCodec
	plan func(value any) pgtype.EncodePlan // returns nil for a Go type that it does not support
}

// PlanEncode implements pgtype.Codec.
func (c *arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		if plan := c.plan(value); plan != nil {
			return plan
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// registerArrays sets the codecs of a connection.
func registerArrays(m *pgtype.Map) {
	register := func(element uint32, plan func(oid uint32, value any) pgtype.EncodePlan, array uint32) {
		elementType, _ := m.TypeForOID(element)
		arrayType, _ := m.TypeForOID(array)
		codec := &arrayCodec{pgtype.ArrayCodec{ElementType: elementType}, func(value any) pgtype.EncodePlan { return plan(element, value) }}
		m.RegisterType(&pgtype.Type{Name: arrayType.Name, OID: array, Codec: codec})
	}
	register(pgtype.TextOID, planTexts, pgtype.TextArrayOID)
	register(pgtype.VarcharOID, planTexts, pgtype.VarcharArrayOID)
	register(pgtype.JSONOID, planTexts, pgtype.JSONArrayOID)
	register(pgtype.UUIDOID, planIDs, pgtype.UUIDArrayOID)
	register(pgtype.Int2OID, planFixedWidth, pgtype.Int2ArrayOID)
	register(pgtype.Int4OID, planFixedWidth, pgtype.Int4ArrayOID)
	register(pgtype.Int8OID, planFixedWidth, pgtype.Int8ArrayOID)
	register(pgtype.BoolOID, planFixedWidth, pgtype.BoolArrayOID)
}

func planTexts(oid uint32, value any) pgtype.EncodePlan {
	appendText := func(buf []byte, v string) []byte { return append(buf, v...) }
	switch value.(type) {
	case []string:
		return arrayPlan[string]{oid, appendText}
	case []*string:
		return nullablePlan[string]{oid, appendText}
	}
	return nil
}

func planIDs(oid uint32, value any) pgtype.EncodePlan {
	appendID := func(buf []byte, v task.ID) []byte { return append(buf, v[:]...) }
	appendHash := func(buf []byte, v task.Hash) []byte { return append(buf, v[:]...) }
	switch value.(type) {
	case []task.ID:
		return arrayPlan[task.ID]{oid, appendID}
	case []*task.ID:
		return nullablePlan[task.ID]{oid, appendID}
	case []task.Hash:
		return arrayPlan[task.Hash]{oid, appendHash}
	case []*task.Hash:
		return nullablePlan[task.Hash]{oid, appendHash}
	}
	return nil
}

// planFixedWidth plans booleans, and integers that are as wide in Go as in Postgres. pgx converts other integers.
func planFixedWidth(oid uint32, value any) pgtype.EncodePlan {
	switch value.(type) {
	case []int16:
		if oid == pgtype.Int2OID {
			return arrayPlan[int16]{oid, func(buf []byte, v int16) []byte { return binary.BigEndian.AppendUint16(buf, uint16(v)) }}
		}
	case []int32:
		if oid == pgtype.Int4OID {
			return arrayPlan[int32]{oid, func(buf []byte, v int32) []byte { return binary.BigEndian.AppendUint32(buf, uint32(v)) }}
		}
	case []int64:
		if oid == pgtype.Int8OID {
			return arrayPlan[int64]{oid, appendInt64}
		}
	case []*int64:
		if oid == pgtype.Int8OID {
			return nullablePlan[int64]{oid, appendInt64}
		}
	case []bool:
		if oid == pgtype.BoolOID {
			return arrayPlan[bool]{oid, func(buf []byte, v bool) []byte {
				if v {
					return append(buf, 1)
				}
				return append(buf, 0)
			}}
		}
	}
	return nil
}

func appendInt64(buf []byte, v int64) []byte { return binary.BigEndian.AppendUint64(buf, uint64(v)) }

// arrayPlan encodes a []T in Postgres' binary format of arrays. The header has the number of dimensions, whether there are
// nulls, the type of the elements, the number of elements, and the index of the first element. The elements follow, each
// after its length.
type arrayPlan[T any] struct {
	oid    uint32
	append func(buf []byte, v T) []byte
}

// Encode implements pgtype.EncodePlan.
func (p arrayPlan[T]) Encode(value any, buf []byte) ([]byte, error) {
	values := value.([]T)
	buf = appendArrayHeader(buf, p.oid, len(values), false)
	for _, v := range values {
		buf = appendElement(buf, v, p.append)
	}
	return buf, nil
}

// nullablePlan is arrayPlan for a []*T. A nil element is encoded as null.
type nullablePlan[T any] struct {
	oid    uint32
	append func(buf []byte, v T) []byte
}

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
			buf = appendElement(buf, *v, p.append)
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
